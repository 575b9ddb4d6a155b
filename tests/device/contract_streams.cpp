#include "device/contract_suite.hpp"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::testing {

namespace {

TEST_P(Contract, DescribesItself) {
  const DeviceInfo& info = backend().info();
  EXPECT_FALSE(info.spec.empty());
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.driver.empty());
  EXPECT_TRUE(info.backend == "host" || info.backend == "cuda") << info.backend;
  EXPECT_GT(info.memory_bytes, 0u);
  const DeviceMemory memory = backend().memory();
  EXPECT_GT(memory.total, 0u);
  EXPECT_LE(memory.free, memory.total);
}

TEST_P(Contract, GateHoldsWorkBackUntilTheWordIsWritten) {
  const auto bytes = random_bytes(4097, 2);
  PinnedBytes source(device(), bytes.size());
  PinnedBytes result(device(), bytes.size());
  DeviceBytes middle(device(), bytes.size());
  Gate gate(device());
  gate.hold(stream());
  stream().copy(middle.data(), source.data(), bytes.size(), CopyDirection::h2d);
  stream().copy(result.data(), middle.data(), bytes.size(), CopyDirection::d2h);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(stream().query());
  source.assign(bytes);
  gate.open();
  stream().synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Contract, GateComparesCyclically) {
  Gate gate(device());
  gate.set(5);
  stream().wait_value(gate.word(), 0xfffffff0u);
  stream().synchronize();
  gate.set(0xfffffff0u);
  stream().wait_value(gate.word(), 5);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(stream().query());
  gate.set(6);
  stream().synchronize();
}

TEST_P(Contract, StreamQueryTellsWhenAllIsDone) {
  EXPECT_TRUE(stream().query());
  Flag ran(device());
  {
    Gate gate(device());
    gate.hold(stream());
    ran.raise_on(stream());
    EXPECT_FALSE(stream().query());
    EXPECT_FALSE(ran.raised());
    gate.open();
    while (!stream().query()) std::this_thread::yield();
  }
  EXPECT_TRUE(ran.raised());
}

TEST_P(Contract, EventNeverRecordedIsDone) {
  const Event event = device().create_event();
  EXPECT_TRUE(event.query());
  event.synchronize();
  stream().wait(event);
  stream().synchronize();
}

TEST_P(Contract, EventMarksTheWorkBeforeIt) {
  Flag before(device());
  Flag after(device());
  Event event = device().create_event();
  Gate first(device());
  Gate second(device());
  first.hold(stream());
  before.raise_on(stream());
  event.record(stream());
  second.hold(stream());
  after.raise_on(stream());
  EXPECT_FALSE(event.query());
  first.open();
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(before.raised());
  EXPECT_FALSE(after.raised());
  EXPECT_FALSE(stream().query());
  second.open();
  stream().synchronize();
  EXPECT_TRUE(after.raised());
}

TEST_P(Contract, EventQueryBecomesTrueByItself) {
  Event event = device().create_event();
  stream().occupy(1e-4);
  event.record(stream());
  while (!event.query()) std::this_thread::yield();
  event.synchronize();
}

TEST_P(Contract, TheHostWaitsForAnEventPollingOrAsleep) {
  for (const EventTiming timing : {EventTiming::off, EventTiming::on}) {
    for (const EventWait wait : {EventWait::poll, EventWait::sleep}) {
      Event event = device().create_event(timing, wait);
      Flag before(device());
      stream().occupy(2e-3);
      before.raise_on(stream());
      event.record(stream());
      event.synchronize();
      EXPECT_TRUE(before.raised());
      EXPECT_TRUE(event.query());
    }
  }
}

TEST_P(Contract, StreamWaitsForAnotherStreamsEvent) {
  const auto bytes = random_bytes(100000, 3);
  const Stream other = device().create_stream(StreamPriority::high);
  PinnedBytes source(device(), bytes.size());
  PinnedBytes result(device(), bytes.size());
  DeviceBytes middle(device(), bytes.size());
  source.assign(bytes);
  Event ready = device().create_event();
  Gate gate(device());
  gate.hold(stream());
  stream().copy(middle.data(), source.data(), bytes.size(), CopyDirection::h2d);
  ready.record(stream());
  other.wait(ready);
  other.copy(result.data(), middle.data(), bytes.size(), CopyDirection::d2h);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(other.query());
  gate.open();
  other.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Contract, StreamsThatDoNotWaitAreIndependent) {
  const Stream other = device().create_stream();
  Flag ran(device());
  Gate gate(device());
  gate.hold(stream());
  ran.raise_on(other);
  other.synchronize();
  EXPECT_TRUE(ran.raised());
  EXPECT_FALSE(stream().query());
}

TEST_P(Contract, WaitMeansTheRecordingOfItsTime) {
  const Stream other = device().create_stream();
  Event event = device().create_event();
  Flag ran(device());
  Gate first(device());
  Gate second(device());
  first.hold(stream());
  event.record(stream());
  other.wait(event);
  ran.raise_on(other);
  second.hold(stream());
  event.record(stream());
  first.open();
  other.synchronize();
  EXPECT_TRUE(ran.raised());
  EXPECT_FALSE(event.query());
  second.open();
  event.synchronize();
}

TEST_P(Contract, RecordingOnAnotherStreamDoesNotReleaseEarlierWaits) {
  const Stream other = device().create_stream();
  const Stream waiting = device().create_stream();
  Event event = device().create_event();
  Flag ran(device());
  Gate gate(device());
  gate.hold(stream());
  event.record(stream());
  waiting.wait(event);
  ran.raise_on(waiting);
  event.record(other);
  event.synchronize();
  EXPECT_TRUE(event.query());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(waiting.query());
  EXPECT_FALSE(ran.raised());
  gate.open();
  waiting.synchronize();
  EXPECT_TRUE(ran.raised());
}

TEST_P(Contract, ElapsedTimeIsOrdered) {
  Event first = device().create_event(EventTiming::on);
  Event second = device().create_event(EventTiming::on);
  Event third = device().create_event(EventTiming::on);
  first.record(stream());
  stream().occupy(2e-3);
  second.record(stream());
  third.record(stream());
  third.synchronize();
  EXPECT_GE(second.seconds_since(first), 1.9e-3);
  EXPECT_GE(third.seconds_since(second), 0);
  EXPECT_NEAR(third.seconds_since(first), third.seconds_since(second) + second.seconds_since(first), 1e-4);
}

TEST_P(Contract, ElapsedTimeNeedsTimedFinishedEvents) {
  Event timed = device().create_event(EventTiming::on);
  Event untimed = device().create_event(EventTiming::off);
  Event unrecorded = device().create_event(EventTiming::on);
  Event pending = device().create_event(EventTiming::on);
  timed.record(stream());
  untimed.record(stream());
  stream().synchronize();
  EXPECT_THROW(static_cast<void>(untimed.seconds_since(timed)), DeviceError);
  EXPECT_THROW(static_cast<void>(unrecorded.seconds_since(timed)), DeviceError);
  Gate gate(device());
  gate.hold(stream());
  pending.record(stream());
  EXPECT_THROW(static_cast<void>(pending.seconds_since(timed)), DeviceError);
}

TEST_P(Contract, DestroyedStreamFinishesItsWork) {
  Flag ran(device());
  Event done = device().create_event();
  Gate gate(device());
  {
    const Stream doomed = device().create_stream();
    gate.hold(doomed);
    ran.raise_on(doomed);
    done.record(doomed);
  }
  EXPECT_FALSE(ran.raised());
  EXPECT_FALSE(done.query());
  gate.open();
  done.synchronize();
  EXPECT_TRUE(ran.raised());
}

TEST_P(Contract, DestroyedEventKeepsItsEffect) {
  const Stream other = device().create_stream();
  Flag ran(device());
  Gate gate(device());
  gate.hold(stream());
  {
    Event event = device().create_event();
    event.record(stream());
    other.wait(event);
  }
  ran.raise_on(other);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(other.query());
  EXPECT_FALSE(ran.raised());
  gate.open();
  other.synchronize();
  EXPECT_TRUE(ran.raised());
}

TEST_P(Contract, DefaultStreamWorks) {
  const Stream standard = device().wrap_stream(nullptr);
  const auto bytes = random_bytes(777, 4);
  PinnedBytes pinned(device(), bytes.size());
  DeviceBytes middle(device(), bytes.size());
  pinned.assign(bytes);
  standard.copy(middle.data(), pinned.data(), bytes.size(), CopyDirection::h2d);
  standard.synchronize();
  EXPECT_TRUE(standard.query());
  EXPECT_TRUE(same_bytes(bytes, download(middle.data(), bytes.size())));
}

// A GPU has fewer queues than streams, for kernels and for copies: a stream that shares a queue with the
// default stream waits there. Not every one of some streams does, unless the default stream waits for all of
// them. `of` gives the held stream and the one that runs, of the default stream and another.
void expect_some_independent(const Device& device, auto&& of) {
  const Stream standard = device.wrap_stream(nullptr);
  std::vector<Stream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(device.create_stream());
  bool independent = false;
  for (const Stream& other : streams) {
    if (independent) break;
    const auto& [held, running] = of(standard, other);
    Flag ran(device);
    Gate gate(device);
    gate.hold(held);
    ran.raise_on(running);
    independent = comes_true([&stream = running] { return stream.query(); }, std::chrono::seconds(2));
    EXPECT_TRUE(!independent || ran.raised());
    EXPECT_FALSE(held.query());
    gate.open();
    held.synchronize();
    running.synchronize();
    EXPECT_TRUE(ran.raised());
  }
  EXPECT_TRUE(independent);
}

TEST_P(Contract, TheDefaultStreamWaitsForNoOther) {
  expect_some_independent(
      device(), [](const Stream& standard, const Stream& other) { return std::tie(other, standard); });
}

TEST_P(Contract, NoStreamWaitsForTheDefaultStream) {
  expect_some_independent(
      device(), [](const Stream& standard, const Stream& other) { return std::tie(standard, other); });
}

TEST_P(Contract, EventRecordedOnManyStreamsMarksTheLastOne) {
  std::vector<Stream> streams;
  for (int i = 0; i < 17; ++i) streams.push_back(device().create_stream());
  Event event = device().create_event();
  Gate first(device());
  Gate last(device());
  first.hold(streams.front());
  event.record(streams.front());
  for (int i = 1; i < 16; ++i) event.record(streams[i]);
  last.hold(streams.back());
  event.record(streams.back());
  first.open();
  streams.front().synchronize();
  EXPECT_FALSE(event.query());
  last.open();
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_P(Contract, ManyThreadsEnqueueAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  constexpr std::size_t kBytes = 64;
  const auto bytes = random_bytes(kThreads * kBytes, 5);
  PinnedBytes source(device(), bytes.size());
  PinnedBytes result(device(), bytes.size());
  DeviceBytes middle(device(), bytes.size());
  source.assign(bytes);
  const Stream other = device().create_stream();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      try {
        Event event = device().create_event();
        for (int round = 0; round < kRounds; ++round) {
          const Stream& there = (t + round) % 2 == 0 ? stream() : other;
          const Stream& back = (t + round) % 3 == 0 ? stream() : other;
          there.copy(middle.data() + t * kBytes, source.data() + t * kBytes, kBytes, CopyDirection::h2d);
          event.record(there);
          back.wait(event);
          back.copy(result.data() + t * kBytes, middle.data() + t * kBytes, kBytes, CopyDirection::d2h);
          event.record(back);
          event.synchronize();
          if (!same_bytes(std::span(bytes).subspan(t * kBytes, kBytes),
                          {result.data() + t * kBytes, kBytes})) {
            ++failures;
          }
          std::memset(result.data() + t * kBytes, static_cast<int>(kPoison), kBytes);
        }
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_P(Contract, ManyThreadsMakeAndFreeAtOnce) {
  constexpr std::size_t kBytes = 4096;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      try {
        const auto bytes = random_bytes(kBytes, t);
        for (int round = 0; round < 10; ++round) {
          const Stream mine = round % 2 == 0 ? device().create_stream() : device().wrap_stream(nullptr);
          const DeviceBytes middle(device(), kBytes);
          std::vector<std::byte> result(kBytes);
          mine.copy(middle.data(), bytes.data(), kBytes, CopyDirection::h2d);
          mine.copy(result.data(), middle.data(), kBytes, CopyDirection::d2h);
          failures += same_bytes(bytes, result) ? 0 : 1;
        }
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_P(Contract, LongQueuesAreKeptInOrder) {
  constexpr std::size_t kSteps = 200;
  DeviceBytes chain(device(), kSteps + 1);
  upload(chain.data(), std::vector<std::byte>(kSteps + 1));
  Gate gate(device());
  gate.hold(stream());
  stream().fill(chain.data(), 7, 1);
  for (std::size_t i = 0; i < kSteps; ++i) {
    stream().copy(chain.data() + i + 1, chain.data() + i, 1, CopyDirection::d2d);
  }
  EXPECT_FALSE(stream().query());
  gate.open();
  stream().synchronize();
  EXPECT_TRUE(same_bytes(std::vector(kSteps + 1, std::byte{7}), download(chain.data(), kSteps + 1)));
}

TEST_P(Contract, HandlesKeepTheBackendAlive) {
  std::vector<Stream> streams;
  std::vector<Event> events;
  {
    const Device again = GetParam().open();
    streams.push_back(again.create_stream());
    events.push_back(again.create_event());
  }
  events.front().record(streams.front());
  streams.front().synchronize();
  // A driver may notice an event somewhat later than its stream.
  events.front().synchronize();
  EXPECT_TRUE(events.front().query());
}

}  // namespace

}  // namespace penstock::testing
