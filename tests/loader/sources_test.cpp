#include "data/support.hpp"
#include "loader/faulty_fixture.hpp"

#include <penstock/memory/registration.hpp>

#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

/// Where the device reads samples, and its effect on memory beside them.
namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

class LoaderSources : public FaultyLoaderTest {
 protected:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kPages = 12;
  static constexpr std::size_t kSample = 100;

  void SetUp() override {
    FaultyLoaderTest::SetUp();
    const auto bytes = random_bytes(kPages * kPage, 8);
    std::memcpy(memory_.get(), bytes.data(), bytes.size());
  }

  [[nodiscard]] std::span<const std::byte> array() const { return {memory_.get(), kPages * kPage}; }
  [[nodiscard]] Dataset samples(std::size_t first, std::size_t count, bool known) const {
    return Dataset({read_array({.name = "x", .dtype = DType::uint8, .shape = {kSample}},
                               array().subspan(first, count * kSample), nullptr,
                               known ? array() : std::span<const std::byte>())});
  }

  /// A transfer of another library, which looks only at the first byte of the memory.
  void expect_plain_copy(std::span<const std::byte> source) {
    const Buffer there = make_device_pool(*device_).allocate(source.size());
    ASSERT_NO_THROW(stream_->copy(there.data(), source.data(), source.size(), CopyDirection::h2d));
    const Buffer back = pinned_->allocate(source.size());
    stream_->copy(back.data(), there.data(), source.size(), CopyDirection::d2h);
    stream_->synchronize();
    EXPECT_EQ(first_difference(back.bytes(), source), -1);
  }

  bool locked(std::span<const std::byte> range) const {
    return Registration::overlaps(*faulty_device_, range.data(), range.size());
  }

  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(kPage, kPages* kPage)), &std::free};
};
PENSTOCK_DEVICE_SUITE(LoaderSources);

TEST_P(LoaderSources, PagesOfSmallArraysAreLeftToTheirOtherOwners) {
  const std::size_t begin = 200;
  const std::size_t count = 95;  // ends in the third page, where other data begins
  const Dataset dataset = samples(begin, count, false);
  const auto after = array().subspan(begin + count * kSample);
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::zero_copy, GatherPath::copy_engine}) {
    for (const char* residency : {"none", "0.3"}) {
      Loader loader(
          dataset, *faulty_device_,
          {.batch_size = 8, .shuffle = true, .residency = Residency::parse(residency), .gather = gather});
      EXPECT_FALSE(locked(array()));
      expect_plain_copy(after);
      expect_stored(dataset, read_epoch(loader));
    }
  }
  Loader in_place(dataset, *faulty_device_,
                  {.batch_size = 8, .shuffle = true, .copy_limit_bytes = count * kSample - 1});
  EXPECT_TRUE(locked(array().first(begin + 1)));
  expect_stored(dataset, read_epoch(in_place));
}

TEST_P(LoaderSources, ASliceHasItsWholeArrayLocked) {
  const std::size_t half = 246;  // less would be a small part of it
  const LoaderOptions options{.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0};
  const Dataset first = samples(0, half, true);
  const Dataset second = samples(array().size() - half * kSample, half, true);
  auto loader = std::make_unique<Loader>(first, *faulty_device_, options);
  EXPECT_TRUE(locked(array()));
  EXPECT_FALSE(Registration::overlaps_in_part(*faulty_device_, array().data(), array().size()));
  expect_plain_copy(array().subspan(half * kSample));
  Loader other(second, *faulty_device_, options);
  expect_stored(first, read_epoch(*loader));
  loader.reset();
  expect_stored(second, read_epoch(other));
}

TEST_P(LoaderSources, FieldsThatShareAPageAreLockedTogether) {
  const auto field = [&](const char* name, std::size_t first) {
    return read_array({.name = name, .dtype = DType::uint8, .shape = {kSample}},
                      array().subspan(first, 100 * kSample), nullptr);
  };
  const Dataset dataset({field("x", 0), field("y", 100 * kSample)});
  Loader loader(dataset, *faulty_device_, {.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0});
  for (const std::string& line : loader.describe()) EXPECT_THAT(line, HasSubstr("zero-copy"));
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderSources, ASmallArrayBesideWhatIsLockedIsCopied) {
  const Registration beside(*faulty_device_, array().data(), kPage);
  const Dataset dataset = samples(kPage - 150, 100, false);
  Loader loader(dataset, *faulty_device_, {.batch_size = 8, .shuffle = true});
  EXPECT_THAT(loader.describe()[0], HasSubstr("zero-copy"));
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderSources, ASmallPartOfAnArrayIsGatheredByTheHost) {
  const Dataset part = samples(5000, 100, true);
  const LoaderOptions options{.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0};
  Loader loader(part, *faulty_device_, options);
  EXPECT_THAT(loader.describe()[0], HasSubstr("small part of an array"));
  EXPECT_FALSE(locked(array()));
  expect_stored(part, read_epoch(loader));
  LoaderOptions forced = options;
  forced.gather = GatherPath::zero_copy;
  Loader zero_copy(part, *faulty_device_, forced);
  EXPECT_TRUE(locked(array()));
  expect_stored(part, read_epoch(zero_copy));
}

TEST_P(LoaderSources, PartsThatAreMostOfAnArrayTogetherAreLocked) {
  const auto part = [&](const char* name, std::size_t first) {
    return read_array({.name = name, .dtype = DType::uint8, .shape = {kSample}},
                      array().subspan(first * 12000, 120 * kSample), nullptr, array());
  };
  const Dataset dataset({part("a", 0), part("b", 1), part("c", 2)});
  Loader loader(dataset, *faulty_device_, {.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0});
  EXPECT_THAT(loader.describe()[2], HasSubstr("zero-copy"));
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderSources, AMappedFileIsReadByTheDeviceAlone) {
  const test::TempDirectory directory;
  const auto path = directory.write("x.npy", test::npy("|u1", "(100, 100)", random_bytes(10000, 3)));
  const Dataset dataset({read_npy(path, {.load_limit = 0})});
  ASSERT_TRUE(dataset.is_file_mapping(0));
  std::optional<Loader> loader;
  try {
    loader.emplace(dataset, *faulty_device_,
                   LoaderOptions{.batch_size = 8, .shuffle = true, .gather = GatherPath::zero_copy});
  } catch (const Unsupported&) {
    if (device_->info().backend == "host") throw;
    GTEST_SKIP() << "this device cannot lock a file's mapping";
  }
  EXPECT_TRUE(locked(dataset.memory(0))) << "a copy would be the CPU's reading";
  expect_stored(dataset, read_epoch(*loader));
}

TEST_P(LoaderSources, WithoutMemoryForCopiesArraysAreLockedWhereTheyLie) {
  const Dataset dataset = samples(0, 100, false);
  const auto no_memory = [] { throw OutOfMemory("locked memory", 1, 1, 0); };
  const auto no_locking = [] { throw Unsupported("no locking today"); };
  for (const std::function<void()>& refusal : {std::function<void()>(no_memory), {no_locking}}) {
    faulty_->fail(Entry::host_register, 1, 1, no_locking);
    faulty_->fail(Entry::host_allocate, 1, 1, refusal);
    Loader loader(dataset, *faulty_device_, {.batch_size = 8, .shuffle = true});
    EXPECT_TRUE(locked(array()));
    expect_stored(dataset, read_epoch(loader));
  }
}

TEST_P(LoaderSources, MemoryThatCannotBeLockedIsGatheredByTheHost) {
  const Dataset dataset = samples(0, 100, false);
  LoaderOptions options{.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0};
  const auto no_locking = [] { throw Unsupported("no locking today"); };
  faulty_->fail(Entry::host_register, 1, 1, no_locking);
  Loader loader(dataset, *faulty_device_, options);
  EXPECT_THAT(loader.describe()[0], HasSubstr("no locking today"));
  EXPECT_FALSE(locked(array()));
  expect_stored(dataset, read_epoch(loader));
  options.gather = GatherPath::zero_copy;
  faulty_->fail(Entry::host_register, 1, 1, no_locking);
  EXPECT_THROW(Loader(dataset, *faulty_device_, options), Unsupported);
}

TEST_P(LoaderSources, AnArrayThatOthersLockedInPartIsNotReadAsIfTheyHadLockedItAll) {
  device_->register_host(memory_.get(), kPage, false);
  {
    const Dataset dataset = samples(0, 100, false);
    Loader loader(dataset, *faulty_device_, {.batch_size = 8, .shuffle = true, .copy_limit_bytes = 0});
    expect_stored(dataset, read_epoch(loader));
  }
  device_->unregister_host(memory_.get());
}

TEST_P(LoaderSources, ValuesThatAreNotAlignedAreGatheredByTheHost) {
  const Dataset dataset({read_array({.name = "x", .dtype = DType::int16, .shape = {50}},
                                    array().subspan(1, 100 * kSample), nullptr)});
  Loader loader(dataset, *faulty_device_,
                {.batch_size = 8, .fields = {{.name = "x", .to = DType::float32}}, .narrow = false});
  EXPECT_THAT(loader.describe()[0], HasSubstr("not aligned"));
  EXPECT_EQ(read_epoch(loader).size(), 13U);
}

TEST(LoaderSourcesArray, LiesInItsAllocation) {
  const auto bytes = random_bytes(100, 1);
  const Field field{.name = "x", .dtype = DType::uint8, .shape = {10}};
  const std::span<const std::byte> all(bytes);
  EXPECT_THROW(static_cast<void>(read_array(field, all.first(50), nullptr, all.subspan(10))),
               InvalidArgument);
  EXPECT_THROW(static_cast<void>(read_array(field, all.last(50), nullptr, all.first(90))), InvalidArgument);
  EXPECT_EQ(read_array(field, all.first(50), nullptr, all)->allocation().size(), 100U);
  EXPECT_EQ(read_array(field, all.first(50), nullptr)->allocation().size(), 50U);
}

}  // namespace
}  // namespace penstock::testing
