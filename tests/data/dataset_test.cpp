#include "data/support.hpp"

#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

namespace penstock {
namespace {

using test::expect_error;

// The contract of every reader. `make` gives a reader of the uint8 samples `data`, each of `bytes` bytes.
struct ReaderKind {
  std::string name;
  std::function<FieldReaderPtr(const test::TempDirectory&, const std::vector<std::byte>& data,
                               std::size_t bytes)>
      make;
  bool in_memory = false;
  bool is_mapping = false;
};

std::string npy_shape(const std::vector<std::byte>& data, std::size_t bytes) {
  return "(" + std::to_string(data.size() / bytes) + ", " + std::to_string(bytes) + ")";
}

std::vector<ReaderKind> reader_kinds() {
  const auto npy = [](std::uint64_t load_limit) {
    return [load_limit](const test::TempDirectory& directory, const std::vector<std::byte>& data,
                        std::size_t bytes) {
      const auto file = directory.write("x.npy", test::npy("|u1", npy_shape(data, bytes), data));
      return read_npy(file, {load_limit});
    };
  };
  const auto raw = [](const test::TempDirectory& directory, const std::vector<std::byte>& data,
                      std::size_t bytes) {
    const auto file = directory.write("x.bin", test::joined(test::bytes_of("a header"), data));
    return read_raw(file, {"x", DType::uint8, {bytes}}, 8, {0});
  };
  const auto array = [](const test::TempDirectory&, const std::vector<std::byte>& data, std::size_t bytes) {
    return read_array({"x", DType::uint8, {bytes}}, data);
  };
  const auto callback = [](const test::TempDirectory&, const std::vector<std::byte>& data,
                           std::size_t bytes) {
    return read_callback({"x", DType::uint8, {bytes}}, data.size() / bytes,
                         [data, bytes](std::uint64_t index, std::span<std::byte> destination) {
                           std::memcpy(destination.data(), data.data() + index * bytes, bytes);
                           return destination.size();
                         });
  };
  const auto narrowed = [](const test::TempDirectory&, const std::vector<std::byte>& data,
                           std::size_t bytes) {
    std::vector<std::int32_t> wide(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) wide[i] = std::to_integer<std::int32_t>(data[i]);
    return narrow_field(read_array({"x", DType::int32, {bytes}}, wide), DType::uint8);
  };
  return {{"array", array, true, false},        {"npy_loaded", npy(1 << 30), true, false},
          {"npy_mapped", npy(0), true, true},   {"raw_mapped", raw, true, true},
          {"callback", callback, false, false}, {"narrowed", narrowed, false, false}};
}

class Reader : public ::testing::TestWithParam<ReaderKind> {
 protected:
  Dataset open(std::size_t samples, std::size_t bytes) {
    data_ = test::random_bytes(samples * bytes, samples * 31 + bytes);
    return Dataset({GetParam().make(directory_, data_, bytes)});
  }

  test::TempDirectory directory_;
  std::vector<std::byte> data_;
};

TEST_P(Reader, GathersTheSamplesAskedForInTheirOrder) {
  for (const std::size_t bytes :
       {1u, 2u, 3u, 4u, 8u, 16u, 32u, 63u, 64u, 65u, 128u, 256u, 784u, 4095u, 4096u, 9000u}) {
    const Dataset dataset = open(67, bytes);
    ASSERT_EQ(dataset.sample_count(), 67u);
    ASSERT_EQ(dataset.sample_bytes(), bytes);
    for (const std::size_t count : {0u, 1u, 2u, 5u, 64u, 200u}) {
      const auto indices = test::random_indices(count, 67, bytes + count);
      for (const StoreKind stores : {StoreKind::cached, StoreKind::streaming}) {
        ASSERT_EQ(test::gather(dataset, 0, indices, stores), test::pick(data_, bytes, indices)) << bytes;
      }
    }
  }
}

TEST_P(Reader, GathersRunsOfSuccessiveSamples) {
  for (const std::size_t bytes : {8u, 100u, 5000u}) {
    const Dataset dataset = open(50, bytes);
    std::vector<std::uint64_t> all(50);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(test::gather(dataset, 0, all), data_);
    const std::vector<std::uint64_t> runs = {3, 4, 5, 49, 0, 1, 1, 2, 48, 49, 47};
    EXPECT_EQ(test::gather(dataset, 0, runs), test::pick(data_, bytes, runs));
  }
}

TEST_P(Reader, WritesToAnyAlignmentAndNothingBesideIt) {
  const Dataset dataset = open(20, 320);
  const auto indices = test::random_indices(16, 20, 4);
  for (std::size_t shift = 0; shift < 64; shift += 7) {
    std::vector<std::byte> around(16 * 320 + 128, std::byte{0x5A});
    dataset.gather(0, indices, std::span(around).subspan(shift, 16 * 320), StoreKind::streaming);
    std::vector<std::byte> expected(around.size(), std::byte{0x5A});
    const auto rows = test::pick(data_, 320, indices);
    std::copy(rows.begin(), rows.end(), expected.begin() + static_cast<std::ptrdiff_t>(shift));
    ASSERT_EQ(around, expected) << shift;
  }
}

TEST_P(Reader, ServesSeveralThreadsAtOnce) {
  const Dataset dataset = open(500, 256);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t round = 0; round < 20; ++round) {
        const auto indices = test::random_indices(100, 500, thread * 1000 + round);
        if (test::gather(dataset, 0, indices) != test::pick(data_, 256, indices)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(Reader, ShowsItsMemoryWhereItHasAny) {
  const Dataset dataset = open(33, 48);
  const auto memory = dataset.memory(0);
  EXPECT_EQ(dataset.is_file_mapping(0), GetParam().is_mapping);
  if (!GetParam().in_memory) {
    EXPECT_TRUE(memory.empty());
    return;
  }
  EXPECT_EQ(std::vector<std::byte>(memory.begin(), memory.end()), data_);
}

TEST_P(Reader, RefusesIndicesPastTheEndAndWrongDestinations) {
  const Dataset dataset = open(9, 16);
  std::vector<std::byte> destination(48);
  const std::vector<std::uint64_t> past = {0, 9, 1};
  expect_error<InvalidArgument>([&] { dataset.gather(0, past, destination); },
                                {"Sample 9", "'x'", "there are 9"});
  const std::vector<std::uint64_t> huge = {1, 2, ~0ull};
  expect_error<InvalidArgument>([&] { dataset.gather(0, huge, destination); }, {"18446744073709551615"});
  const std::vector<std::uint64_t> fine = {0, 1, 2};
  for (const std::size_t size : {0u, 16u, 47u}) {
    expect_error<InvalidArgument>([&] { dataset.gather(0, fine, std::span(destination).first(size)); },
                                  {"3 samples", std::to_string(size)});
  }
  expect_error<InvalidArgument>([&] { dataset.gather(1, fine, destination); }, {"Field 1"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Reader, ::testing::ValuesIn(reader_kinds()),
                         [](const auto& tested) { return tested.param.name; });

FieldReaderPtr zeros(const std::string& name, std::size_t count) {
  return read_array({name, DType::uint8, {}}, std::vector<std::uint8_t>(count));
}

TEST(Dataset, ShowsItsFields) {
  const Dataset dataset(
      {read_array({"images", DType::float32, {2, 3}}, std::vector<float>(60)), zeros("labels", 10)});
  EXPECT_EQ(dataset.field_count(), 2u);
  EXPECT_EQ(dataset.sample_count(), 10u);
  EXPECT_EQ(dataset.field(0).name, "images");
  EXPECT_EQ(dataset.field(0).dtype, DType::float32);
  EXPECT_EQ(dataset.field(0).shape, (Shape{2, 3}));
  EXPECT_EQ(dataset.field_index("labels"), 1u);
  EXPECT_EQ(dataset.sample_bytes(0), 24u);
  EXPECT_EQ(dataset.sample_bytes(), 25u);
  expect_error<InvalidArgument>([&] { static_cast<void>(dataset.field_index("label")); },
                                {"'label'", "images, labels"});
}

TEST(Dataset, RefusesWhatIsNoDataset) {
  expect_error<InvalidArgument>([] { Dataset({}); }, {"without fields"});
  expect_error<InvalidArgument>([] { Dataset({nullptr}); }, {"null reader"});
  expect_error<InvalidArgument>([] { Dataset({zeros("x", 0)}); }, {"zero samples"});
  expect_error<InvalidArgument>([] { Dataset({zeros("x", 3), zeros("y", 4)}); }, {"'x' has 3", "'y' has 4"});
  expect_error<InvalidArgument>([] { Dataset({zeros("x", 3), zeros("x", 3)}); }, {"Two fields", "'x'"});
  expect_error<InvalidArgument>([] { Dataset({zeros("", 3)}); }, {"without a name"});
  const auto nothing = [](std::uint64_t, std::span<std::byte>) { return std::size_t{0}; };
  expect_error<InvalidArgument>([&] { Dataset({read_callback({"x", DType::uint8, {3, 0}}, 4, nothing)}); },
                                {"zero bytes"});
  expect_error<InvalidArgument>(
      [&] { Dataset({read_callback({"x", DType::float64, {std::size_t{1} << 61}}, 4, nothing)}); },
      {"'x'", "address space"});
  const auto half = [&](const char* name) {
    return read_callback({name, DType::uint8, {std::size_t{1} << 63}}, 4, nothing);
  };
  expect_error<InvalidArgument>([&] { Dataset({half("x"), half("y")}); }, {"address space"});
}

TEST(ArrayReader, KeepsBorrowedMemoryAliveAndReadsItInPlace) {
  auto owner = std::make_shared<std::vector<std::byte>>(test::random_bytes(96, 1));
  const std::weak_ptr<void> watch = owner;
  const std::byte* const address = owner->data();
  auto reader = read_array({"x", DType::int16, {4}}, *owner, owner);
  owner.reset();
  ASSERT_FALSE(watch.expired());
  {
    const Dataset dataset({std::move(reader)});
    const Dataset copy = dataset;
    EXPECT_EQ(copy.memory(0).data(), address);
    EXPECT_EQ(copy.sample_count(), 12u);
  }
  EXPECT_TRUE(watch.expired());
}

TEST(ArrayReader, RefusesAPartOfASample) {
  expect_error<InvalidArgument>(
      [] { static_cast<void>(read_array({"x", DType::int32, {3}}, std::vector<std::uint8_t>(25))); },
      {"25 bytes", "'x'", "12 bytes"});
  expect_error<InvalidArgument>(
      [] { static_cast<void>(read_array({"x", DType::int32, {0}}, std::vector<std::uint8_t>(25))); },
      {"'x' is 0 of int32: zero bytes. Leave the field out."});
}

TEST(CallbackReader, NamesTheSampleWhenTheCallbackFails) {
  const auto function = [](std::uint64_t index, std::span<std::byte> destination) -> std::size_t {
    if (index == 17) throw std::runtime_error("the archive is damaged");
    if (index == 18) throw 7;
    if (index == 19) return destination.size() - 1;
    if (index == 20) return destination.size() + 1;
    return destination.size();
  };
  const Dataset dataset({read_callback({"x", DType::uint8, {8}}, 30, function)});
  const auto reads = [&](std::uint64_t index) {
    return [&dataset, index] {
      static_cast<void>(test::gather(dataset, 0, std::vector<std::uint64_t>{3, index, 4}));
    };
  };
  expect_error<Error>(reads(17), {"sample 17", "'x'", "the archive is damaged"});
  expect_error<Error>(reads(18), {"sample 18", "not a std::exception"});
  expect_error<Error>(reads(19), {"wrote 7 bytes for sample 19", "all 8"});
  expect_error<Error>(reads(20), {"wrote 9 bytes for sample 20"});
  EXPECT_NO_THROW(reads(21)());
  expect_error<InvalidArgument>([] { static_cast<void>(read_callback({"x", DType::uint8, {}}, 3, {})); },
                                {"empty"});
}

}  // namespace
}  // namespace penstock
