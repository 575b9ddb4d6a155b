#include "data/support.hpp"
#include "loader/faulty_fixture.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <random>
#include <set>
#include <thread>
#include <utility>

/// Failures of a stage, of a dataset and of a device, and how a consumer learns of them.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class LoaderFaults : public FaultyLoaderTest {
 protected:
  /// `plain`, read by a function that calls `before` for each sample.
  static Dataset with(const Dataset& plain, std::function<void(std::uint64_t)> before) {
    return Dataset({read_callback(plain.field(0), plain.sample_count(),
                                  [plain, before](std::uint64_t index, std::span<std::byte> out) {
                                    before(index);
                                    plain.gather(0, std::span(&index, 1), out);
                                    return out.size();
                                  })});
  }

  const Dataset dataset_{{random_field("x", DType::uint8, {24}, 60, 1)}};
};
PENSTOCK_DEVICE_SUITE(LoaderFaults);

TEST_P(LoaderFaults, OneSampleIsADataset) {
  const Dataset dataset({random_field("x", DType::uint8, {24}, 1, 2)});
  for (const Way& way : kWays) {
    for (const std::uint64_t batch : {1U, 100U}) {
      Loader loader(dataset, *device_,
                    {.batch_size = batch,
                     .shuffle = true,
                     .residency = Residency::parse(way.residency),
                     .gather = way.gather});
      for (int epoch = 0; epoch < 3; ++epoch) {
        const auto batches = read_epoch(loader);
        ASSERT_EQ(batches.size(), 1U);
        expect_stored(dataset, batches);
      }
    }
  }
}

TEST_P(LoaderFaults, ABatchLargerThanTheDatasetHoldsAllOfIt) {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  for (const Way& way : kWays) {
    const Residency residency = Residency::parse(way.residency);
    Loader loader(dataset_, *device_, {.batch_size = huge, .residency = residency, .gather = way.gather});
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto batches = read_epoch(loader);
      ASSERT_EQ(batches.size(), 1U);
      EXPECT_EQ(batches[0].indices, numbers(60));
      expect_stored(dataset_, batches);
    }
    EXPECT_THROW(Loader(dataset_, *device_, {.batch_size = 61, .drop_last = true}), InvalidArgument);
  }
}

TEST_P(LoaderFaults, ASampleThatCannotBeReadIsNamedAtItsBatch) {
  for (const char* residency : {"none", "0.25"}) {
    for (const bool writes_short : {false, true}) {
      std::atomic<bool> broken{true};
      const auto reader =
          read_callback(dataset_.field(0), 60, [&](std::uint64_t i, std::span<std::byte> out) {
            if (i == 37 && broken && !writes_short) throw std::runtime_error("disk on fire");
            dataset_.gather(0, std::span(&i, 1), out);
            return i == 37 && broken ? out.size() - 1 : out.size();
          });
      const LoaderOptions options{.batch_size = 8, .residency = Residency::parse(residency), .threads = 2};
      Loader loader(Dataset({reader}), *faulty_device_, options);
      for (std::uint64_t i = 0; i < 4; ++i) expect_stored(dataset_, read(*loader.next(*stream_)));
      for (int again = 0; again < 3; ++again) {
        const auto message = message_of([&] { static_cast<void>(loader.next(*stream_)); });
        EXPECT_THAT(message, HasSubstr("37"));
        EXPECT_THAT(message, HasSubstr(writes_short ? "23" : "disk on fire"));
      }
      const SamplerState state = loader.state();
      EXPECT_EQ(state.consumed, 32U);
      EXPECT_EQ(loader.batches_left(), 4U);
      broken = false;
      EXPECT_THROW(static_cast<void>(loader.next(*stream_)), Error);
      {
        Loader another(Dataset({reader}), *faulty_device_, options);
        another.restore(state);
        EXPECT_EQ(indices_of(read_epoch(another)).front(), 32U);
      }
      loader.restore(state);
      const auto rest = read_epoch(loader);
      EXPECT_EQ(indices_of(rest).size(), 28U);
      expect_stored(dataset_, rest);
      broken = true;
      EXPECT_THROW(read_epoch(loader), Error);
      broken = false;
      loader.start_epoch(1);
      EXPECT_EQ(indices_of(read_epoch(loader)), numbers(60));
    }
    EXPECT_EQ(faulty_->live(), LiveHandles{});
  }
}

TEST_P(LoaderFaults, ASampleThatCannotBeMadeResidentIsNamedAtTheFirstBatch) {
  std::atomic<bool> broken{true};
  const Dataset dataset = with(dataset_, [&](std::uint64_t index) {
    if (index == 37 && broken) throw std::runtime_error("disk on fire");
  });
  Loader loader(dataset, *faulty_device_, {.batch_size = 8, .residency = Residency::parse("all")});
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(message_of([&] { static_cast<void>(loader.next(*stream_)); }), HasSubstr("37"));
  }
  broken = false;
  loader.start_epoch(0);
  const auto batches = read_epoch(loader);
  EXPECT_EQ(indices_of(batches), numbers(60));
  expect_stored(dataset_, batches);
}

TEST_P(LoaderFaults, EveryThreadThatWaitsLearnsWhatWentWrong) {
  std::atomic<int> waiting{0};
  const Dataset dataset = with(dataset_, [&](std::uint64_t) {
    while (waiting < 3) std::this_thread::yield();
    std::this_thread::sleep_for(5ms);
    throw std::runtime_error("disk on fire");
  });
  Loader loader(dataset, *device_, {.batch_size = 8, .threads = 1});
  std::vector<std::future<void>> threads;
  for (int i = 0; i < 3; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      const Stream stream = device_->create_stream();
      ++waiting;
      EXPECT_THROW(static_cast<void>(loader.next(stream)), Error);
    }));
  }
  for (auto& thread : threads) {
    EXPECT_EQ(thread.wait_for(120s), std::future_status::ready) << "a thread was forgotten";
  }
  loader.close();
}

TEST_P(LoaderFaults, AFileCutShortWhileMappedIsAnError) {
  const test::TempDirectory directory;
  const std::size_t samples = 400;
  const std::size_t row = 4096;
  const auto data = random_bytes(samples * row, 3);
  const auto whole = test::npy("|u1", "(400, 4096)", data);
  for (const char* residency : {"none", "0.5", "all"}) {
    SCOPED_TRACE(residency);
    const auto path = directory.write("x.npy", whole);
    const Dataset dataset({read_npy(path, {.load_limit = 0})});
    ASSERT_TRUE(dataset.is_file_mapping(0));
    Loader loader(dataset, *device_,
                  {.batch_size = 20, .residency = Residency::parse(residency), .threads = 2});
    std::uint64_t good = 0;
    const auto take_all = [&] {
      while (const auto batch = loader.next(*stream_)) {
        const HostBatch host = read(*batch);
        for (std::size_t i = 0; i < host.indices.size(); ++i) {
          const auto at = host.indices[i] * row;
          ASSERT_EQ(first_difference(std::span(host.fields[0]).subspan(i * row, row),
                                     std::span(data).subspan(at, row)),
                    -1);
        }
        ++good;
        if (good == 2) std::filesystem::resize_file(path, 100 * row);
      }
    };
    if (std::string(residency) == "all") {
      take_all();
      EXPECT_EQ(good, 20U) << "what is resident needs no file";
      continue;
    }
    EXPECT_THAT(message_of(take_all), HasSubstr("x.npy"));
    EXPECT_LT(good, 20U);
    directory.write("x.npy", whole);
    loader.start_epoch(0);
    good = 2;
    take_all();
    EXPECT_EQ(good, 22U);
  }
}

TEST_P(LoaderFaults, AnyEntryOfTheDeviceMayFailAnywhere) {
  const Dataset dataset({dataset_.reader(0), random_field("y", DType::uint8, {2}, 60, 2)});
  const Dataset mixed({dataset.reader(0), as_callback(dataset.reader(1))});
  int at_construction = 0;
  int in_epoch = 0;
  const auto attempt = [&](const Way& way) {
    const bool host = way.gather == GatherPath::host;
    std::optional<Loader> loader;
    try {
      loader.emplace(host ? mixed : dataset, *faulty_device_,
                     LoaderOptions{.batch_size = 8,
                                   .shuffle = true,
                                   .residency = Residency::parse(way.residency),
                                   .gather = way.gather,
                                   .fields = {{.name = "y", .to = DType::float16, .scale = {1.0F}}},
                                   .copy_limit_bytes = way.residency[0] == 'n' ? 0U : 1U << 20,
                                   .threads = 1});
    } catch (const Error&) {
      ++at_construction;
      return;
    }
    std::vector<HostBatch> batches;
    for (bool over = false; !over;) {
      try {
        while (const auto batch = loader->next(*stream_)) batches.push_back(read(*batch));
        static_cast<void>(loader->stats());
        over = true;
      } catch (const Error&) {
        ++in_epoch;
        faulty_->heal();
        loader->restore(loader->state());
        over = loader->state().epoch == 1;
      }
    }
    Sampler sampler(60, {.shuffle = true, .batch_size = 60});
    std::vector<std::uint64_t> order(60);
    sampler.next(order);
    EXPECT_EQ(indices_of(batches), order) << "restored after the failure, it goes on where it was";
    const Dataset first({dataset.reader(0)});
    expect_stored(first, batches);
  };
  std::set<Entry> failed;
  constexpr auto kEntries = static_cast<std::size_t>(Entry::last_) + 1;
  for (const Way& way : kWays) {
    std::array<std::size_t, kEntries> calls{};
    for (std::size_t e = 0; e < kEntries; ++e) calls[e] = faulty_->calls(static_cast<Entry>(e));
    attempt(way);
    for (std::size_t e = 0; e < kEntries; ++e) calls[e] = faulty_->calls(static_cast<Entry>(e)) - calls[e];
    for (std::size_t e = 0; e < kEntries; ++e) {
      const auto entry = static_cast<Entry>(e);
      for (std::size_t nth = 1; nth <= calls[e]; nth *= 3) {
        SCOPED_TRACE("entry " + std::to_string(e) + ", call " + std::to_string(nth));
        faulty_->fail(entry, nth);
        const int sooner = in_epoch;
        attempt(way);
        if (in_epoch != sooner) failed.insert(entry);
        faulty_->heal();
        ASSERT_EQ(faulty_->live(), LiveHandles{}) << way;
        ASSERT_NO_THROW(device_->create_stream().synchronize()) << "nothing was taken from under the device";
      }
    }
  }
  EXPECT_GT(at_construction, 0);
  EXPECT_THAT(failed, IsSupersetOf({Entry::copy, Entry::copy_each, Entry::gather, Entry::event_record,
                                    Entry::stream_wait_event}));
}

TEST_P(LoaderFaults, ABatchStaysWhereTheConsumersStreamCannotWaitForIt) {
  const auto watched = std::make_shared<FaultyBackend>(device_->shared_backend());
  const Stream stream = Device(watched).create_stream();
  Loader loader(dataset_, *device_, {.batch_size = 8});
  watched->fail(Entry::stream_wait_event);
  EXPECT_THROW(static_cast<void>(loader.next(stream)), DeviceError);
  EXPECT_EQ(indices_of(read_epoch(loader)), numbers(60));
}

TEST_P(LoaderFaults, ADeviceThatFailsForGoodCanBeLeft) {
  for (const Way& way : kWays) {
    for (const bool resident_first : {false, true}) {
      {
        Loader loader(dataset_, *faulty_device_,
                      {.batch_size = 8, .residency = Residency::parse(way.residency), .gather = way.gather});
        if (resident_first) static_cast<void>(loader.next(*stream_));
        for (std::size_t e = 0; e <= static_cast<std::size_t>(Entry::last_); ++e) {
          // The decorated device goes on working, so its memory must stay meanwhile.
          if (static_cast<Entry>(e) == Entry::stream_synchronize) continue;
          faulty_->fail(static_cast<Entry>(e), 1, FaultyBackend::kForever);
        }
        EXPECT_THROW(for (int i = 0; i < 100; ++i) static_cast<void>(loader.next(*stream_)), DeviceError);
      }
      faulty_->heal();
      // If the device could not say that it is done with locked memory, the pool keeps it.
      EXPECT_EQ(faulty_->live().streams, 0U) << way;
      EXPECT_EQ(faulty_->live().events, 0U) << way;
      EXPECT_EQ(faulty_->live().device_allocations, 0U) << way;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
