#include "loader/faulty_fixture.hpp"
#include "support/fork.hpp"
#include "support/gate.hpp"
#include "support/threads.hpp"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_TEST_SANITIZED 1
#endif
#endif

/// Ends: closing and destroying at any point, from any thread, and children of fork.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

class LoaderEnds : public FaultyLoaderTest {
 protected:
  const Dataset dataset_{{random_field("x", DType::uint8, {512}, 80, 1)}};
};
PENSTOCK_DEVICE_SUITE(LoaderEnds);

TEST_P(LoaderEnds, ClosingEndsNextInOtherThreads) {
  Loader loader(
      dataset_, *device_,
      {.batch_size = 8, .device_budget_bytes = 3 * (8 * 512 + 256), .full_patience = std::chrono::hours(1)});
  std::vector<DeviceBatch> held;
  while (held.size() < 3) held.push_back(std::move(*loader.next(*stream_)));
  std::vector<std::future<void>> threads;
  for (int i = 0; i < 3; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      const Stream stream = device_->create_stream();
      EXPECT_THROW(static_cast<void>(loader.next(stream)), Closed);
    }));
  }
  std::this_thread::sleep_for(2ms);
  loader.close();
  for (auto& thread : threads) thread.get();
  loader.close();
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), Closed);
  EXPECT_THROW(loader.start_epoch(7), Closed);
  EXPECT_THROW(loader.restore(loader.state()), Closed);
  EXPECT_EQ(loader.stats().batches, 3U);
  EXPECT_EQ(loader.state().consumed, 24U);
  for (const DeviceBatch& batch : held) expect_stored(dataset_, read(batch));
}

TEST_P(LoaderEnds, AClosedLoaderStaysClosedWhereItWouldStayAnyway) {
  Loader loader(dataset_, *device_, {.batch_size = 8});
  loader.close();
  EXPECT_THROW(loader.start_epoch(0), Closed);
  EXPECT_THROW(loader.restore(loader.state()), Closed);
}

TEST_P(LoaderEnds, SeveralThreadsMayCloseALoaderAtOnce) {
  for (int round = 0; round < 5; ++round) {
    Loader loader(dataset_, *device_, {.batch_size = 8});
    std::latch together{3};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        together.arrive_and_wait();
        loader.close();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THROW(static_cast<void>(loader.next(*stream_)), Closed);
  }
}

TEST_P(LoaderEnds, CopiesAreWaitedForThoughClosingFailed) {
  GatedStream gate(*device_);
  faulty_->hold_back_next_copy(gate.word());
  auto loader = std::make_unique<Loader>(dataset_, *faulty_device_,
                                         LoaderOptions{.batch_size = 8, .gather = GatherPath::host});
  const DeviceBatch batch = std::move(*loader->next(*stream_));
  const std::size_t unlocked = faulty_->calls(Entry::host_unregister);
  const auto unlocks = [&] { return faulty_->calls(Entry::host_unregister) - unlocked; };
  faulty_->fail(Entry::stream_synchronize);
  EXPECT_THROW(loader->close(), DeviceError);
  const std::size_t waits = faulty_->calls(Entry::stream_synchronize);
  auto ended = std::async(std::launch::async, [&] { loader.reset(); });
  while (faulty_->calls(Entry::stream_synchronize) == waits && unlocks() == 0) std::this_thread::yield();
  EXPECT_EQ(unlocks(), 0U) << "a copy still reads the memory";
  gate.open();
  ended.get();
  expect_stored(dataset_, read(batch));
}

TEST_P(LoaderEnds, SignalsAreForTheThreadsOfTheProgram) {
  sigset_t before;
  sigset_t after;
  sigset_t reading;
  std::atomic<bool> has_read{false};
  const Dataset dataset(
      {read_callback(dataset_.field(0), 80, [&](std::uint64_t index, std::span<std::byte> out) {
        if (!has_read) pthread_sigmask(SIG_SETMASK, nullptr, &reading);
        has_read = true;
        dataset_.gather(0, std::span(&index, 1), out);
        return out.size();
      })});
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  Loader loader(dataset, *device_, {.batch_size = 8, .threads = 1});
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  static_cast<void>(loader.next(*stream_));
  EXPECT_EQ(sigismember(&before, SIGINT), 0);
  EXPECT_EQ(sigismember(&after, SIGINT), 0);
  EXPECT_EQ(sigismember(&reading, SIGINT), 1);
}

TEST_P(LoaderEnds, ALoaderMayGoAfterAnyNumberOfBatches) {
  for (const Way& way : kWays) {
    for (int count = 0; count < 12; ++count) {
      Loader loader(dataset_, *faulty_device_,
                    {.batch_size = 8,
                     .shuffle = true,
                     .prefetch_depth = static_cast<std::size_t>(1 + count % 4),
                     .residency = Residency::parse(way.residency),
                     .gather = way.gather});
      for (int i = 0; i < count; ++i) {
        if (const auto batch = loader.next(*stream_)) expect_stored(dataset_, read(*batch));
      }
    }
    EXPECT_EQ(faulty_->live(), LiveHandles{}) << way;
  }
}

/// A dataset whose samples cannot be read before `gate` is counted down.
struct HeldBackSamples {
  explicit HeldBackSamples(const Dataset& samples)
      : dataset({read_callback(samples.field(0), samples.sample_count(),
                               [this, samples](std::uint64_t index, std::span<std::byte> out) {
                                 gate.wait();
                                 samples.gather(0, std::span(&index, 1), out);
                                 return out.size();
                               })}) {}

  std::latch gate{1};
  const Dataset dataset;
};

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

TEST_P(LoaderEnds, AWaitThatIsGivenUpLosesNothing) {
  HeldBackSamples held_back(dataset_);
  Loader loader(held_back.dataset, *faulty_device_, {.batch_size = 8});
  for (int turn = 0; turn < 2; ++turn) {
    int asked = 0;
    EXPECT_THROW(static_cast<void>(loader.next(*stream_,
                                               [&] {
                                                 if (++asked == 2) throw Interrupted();
                                               })),
                 Interrupted);
    EXPECT_EQ(asked, 2);
  }
  EXPECT_EQ(loader.state().consumed, 0U);
  bool opened = false;
  std::vector<HostBatch> batches;
  while (const auto batch = loader.next(*stream_, [&] {
    if (!std::exchange(opened, true)) held_back.gate.count_down();
  })) {
    batches.push_back(read(*batch));
  }
  EXPECT_EQ(indices_of(batches), numbers(80));
  expect_stored(dataset_, batches);
  EXPECT_EQ(loader.stats().batches, 10U);
}

TEST_P(LoaderEnds, ALoaderMayBeClosedByWhoWaitsForItsBatch) {
  HeldBackSamples held_back(dataset_);
  auto loader = std::make_unique<Loader>(held_back.dataset, *faulty_device_, LoaderOptions{.batch_size = 8});
  EXPECT_THROW(static_cast<void>(loader->next(*stream_,
                                              [&] {
                                                held_back.gate.count_down();
                                                loader.reset();
                                              })),
               Closed);
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(LoaderEnds, ALoaderMayGoWhileSamplesAreRead) {
  std::promise<void> reading;
  std::promise<void> go_on;
  auto wait = go_on.get_future().share();
  std::atomic<int> calls{0};
  const Dataset dataset(
      {read_callback(dataset_.field(0), 80, [&](std::uint64_t index, std::span<std::byte> out) {
        if (calls++ == 5) {
          reading.set_value();
          wait.wait();
        }
        dataset_.gather(0, std::span(&index, 1), out);
        return out.size();
      })});
  auto loader = std::make_unique<Loader>(dataset, *faulty_device_, LoaderOptions{.batch_size = 8});
  reading.get_future().wait();
  auto ended = std::async(std::launch::async, [&] { loader.reset(); });
  EXPECT_EQ(ended.wait_for(5ms), std::future_status::timeout) << "it waits for the reader";
  go_on.set_value();
  ended.get();
  EXPECT_LE(calls, 16);
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(LoaderEnds, MovingToTheDeviceStopsForWhoCannotWait) {
  constexpr std::size_t kRow = std::size_t{1} << 20;
  constexpr std::uint64_t kRows = 40;
  std::atomic<std::uint64_t> calls{0};
  std::optional<Hold> hold(std::in_place);
  const Dataset dataset({read_callback({.name = "x", .dtype = DType::uint8, .shape = {kRow}}, kRows,
                                       [&](std::uint64_t index, std::span<std::byte> out) {
                                         if (index == 1) hold->stay();
                                         ++calls;
                                         std::ranges::fill(out, static_cast<std::byte>(index));
                                         return out.size();
                                       })});
  const LoaderOptions options{.batch_size = 4, .residency = Residency::parse("all"), .threads = 1};
  const auto in_mid_move = [&](auto&& call) {
    hold->wait_for(1);
    Background other(call);
    other.wait_until_stuck();
    hold->let_go();
    other.join();
  };
  auto loader = std::make_unique<Loader>(dataset, *faulty_device_, options);
  in_mid_move([&] { loader.reset(); });
  EXPECT_LT(calls, kRows);
  EXPECT_EQ(faulty_->live(), LiveHandles{});
  calls = 0;
  hold.emplace();
  loader = std::make_unique<Loader>(dataset, *faulty_device_, options);
  SamplerState state = loader->state();
  state.consumed = 38;
  in_mid_move([&] { loader->restore(state); });
  const auto batches = read_epoch(*loader);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_TRUE(std::ranges::all_of(std::span(batches[0].fields[0]).first(kRow),
                                  [](std::byte byte) { return byte == std::byte{38}; }));
  EXPECT_GT(calls, kRows) << "it was begun again";
}

TEST_P(LoaderEnds, ALoaderMayBeClosedWhileOthersTakeBatches) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 15; ++round) {
    const Way way = kWays[random() % std::size(kWays)];
    {
      Loader loader(dataset_, *faulty_device_,
                    {.batch_size = 8,
                     .residency = Residency::parse(way.residency),
                     .gather = way.gather,
                     .threads = 1});
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          const Stream stream = device_->create_stream();
          try {
            for (;;) static_cast<void>(loader.next(stream));
          } catch (const Closed&) {
          }
          stream.synchronize();
        });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      loader.close();
      for (std::thread& thread : threads) thread.join();
    }
    EXPECT_EQ(faulty_->live(), LiveHandles{}) << way;
  }
}

TEST_P(LoaderEnds, ALoaderMayBeMoved) {
  Loader first(dataset_, *faulty_device_, {.batch_size = 8});
  auto batches = std::vector{read(*first.next(*stream_))};
  Loader second(std::move(first));
  batches.push_back(read(*second.next(*stream_)));
  Loader third(dataset_, *faulty_device_, {.batch_size = 5});
  third = std::move(second);
  for (const HostBatch& batch : read_epoch(third)) batches.push_back(batch);
  EXPECT_EQ(indices_of(batches), numbers(80));
  expect_stored(dataset_, batches);
}

TEST_P(LoaderEnds, AChildOfForkIsToldAndEndsCleanly) {
#ifdef PENSTOCK_TEST_SANITIZED
  GTEST_SKIP() << "the sanitizer's own locks may be held in the child";
#else
  for (const Way& way : kWays) {
    auto loader = std::make_unique<Loader>(
        dataset_, *device_,
        LoaderOptions{.batch_size = 8, .residency = Residency::parse(way.residency), .gather = way.gather});
    auto batch = loader->next(*stream_);
    const bool good = succeeds_in_child([&] {
      const bool told = says_forked([&] { static_cast<void>(loader->next(*stream_)); }) &&
                        says_forked([&] { loader->start_epoch(0); }) &&
                        says_forked([&] { loader->restore({}); }) &&
                        says_forked([&] { static_cast<void>(loader->state()); }) &&
                        says_forked([&] { static_cast<void>(loader->batches_left()); }) &&
                        says_forked([&] { static_cast<void>(loader->stats()); }) &&
                        says_forked([&] { static_cast<void>(loader->epoch_stats(0)); }) &&
                        says_forked([&] { static_cast<void>(loader->timeline()); });
      loader->close();
      batch.reset();
      loader.reset();
      return told;
    });
    EXPECT_TRUE(good) << way;
    expect_stored(dataset_, read(*batch));
    batch.reset();
    EXPECT_EQ(read_epoch(*loader).size(), 9U);
  }
#endif
}

TEST_P(LoaderEnds, AChildOfForkIsNotCaughtInTheLockOfWhoWaitsForABatch) {
#ifdef PENSTOCK_TEST_SANITIZED
  GTEST_SKIP() << "the sanitizer's own locks may be held in the child";
#else
  const auto watched = std::make_shared<FaultyBackend>(device_->shared_backend());
  const Stream stream = Device(watched).create_stream();
  Loader loader(dataset_, *device_, {.batch_size = 8});
  auto batch = loader.next(*stream_);
  std::promise<void> locked;
  std::promise<void> forked;
  watched->fail(Entry::stream_wait_event, 1, 1, [&] {
    locked.set_value();
    forked.get_future().wait();
  });
  std::thread other([&] { EXPECT_THROW(static_cast<void>(loader.next(stream)), DeviceError); });
  locked.get_future().wait();
  EXPECT_TRUE(succeeds_in_child([&] {
    batch.reset();
    return says_forked([&] { loader.start_epoch(0); }) &&
           says_forked([&] { static_cast<void>(loader.state()); });
  }));
  forked.set_value();
  other.join();
#endif
}

TEST_P(LoaderEnds, AChildOfForkIsNotCaughtInTheLockOfTheStatistics) {
#ifdef PENSTOCK_TEST_SANITIZED
  GTEST_SKIP() << "the sanitizer's own locks may be held in the child";
#else
  Loader loader(dataset_, *faulty_device_, {.batch_size = 8});
  const auto batch = loader.next(*stream_);
  std::promise<void> locked;
  std::promise<void> forked;
  faulty_->fail(Entry::event_query, 1, 1, [&] {
    locked.set_value();
    forked.get_future().wait();
  });
  std::thread other([&] { EXPECT_THROW(static_cast<void>(loader.stats()), DeviceError); });
  locked.get_future().wait();
  const std::function<void()> calls[] = {
      [&] { static_cast<void>(loader.next(*stream_)); }, [&] { static_cast<void>(loader.stats()); },
      [&] { static_cast<void>(loader.epoch_stats(0)); }, [&] { static_cast<void>(loader.timeline()); }};
  EXPECT_TRUE(succeeds_in_child(
      [&] { return std::ranges::all_of(calls, [](auto& call) { return says_forked(call); }); }));
  forked.set_value();
  other.join();
#endif
}

}  // namespace
}  // namespace penstock::testing
