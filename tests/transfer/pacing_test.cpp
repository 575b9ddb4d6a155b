#include "support/comes_true.hpp"
#include "support/gate.hpp"
#include "transfer/engine_fixture.hpp"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

/// An engine's large copies from locked memory are enqueued in parts, in turn on two streams, and one at a
/// time on each.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSmall = 4096;
constexpr std::size_t kLarge = 3 * kSmall;
constexpr std::size_t kBytes = 10 * kSmall + 5;

class EnginePacing : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    DeviceTuning tuning = device_->info().tuning;
    tuning.small_part_bytes = kSmall;
    tuning.large_part_bytes = kLarge;
    faulty_->tune(tuning);
    engine_.emplace(*faulty_device_);
    enqueued_before_ = faulty_->copied_bytes(CopyDirection::h2d);
  }

  /// Locked memory with bytes of its own, and memory on the device for it.
  struct Ends {
    Buffer source;
    Buffer destination;
  };
  Ends ends(std::size_t bytes, std::uint64_t seed = 1) {
    Ends made{pinned_->allocate(bytes), poisoned_on_device(bytes)};
    const auto values = random_bytes(bytes, seed);
    std::memcpy(made.source.data(), values.data(), bytes);
    enqueued_before_ = faulty_->copied_bytes(CopyDirection::h2d);
    return made;
  }

  Transfer copy(const Ends& ends, const Stream* after = nullptr) {
    return engine_->copy(ends.destination.data(), ends.source.data(), ends.source.size(), {.after = after});
  }

  void expect_whole(const Ends& ends) {
    EXPECT_EQ(first_difference(read(ends.destination), ends.source.bytes()), -1);
  }

  [[nodiscard]] std::size_t enqueued() const {
    return faulty_->copied_bytes(CopyDirection::h2d) - enqueued_before_;
  }

  void expect_stays_enqueued(std::size_t bytes) {
    EXPECT_TRUE(comes_true([&] { return enqueued() == bytes; })) << enqueued();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(enqueued(), bytes);
  }

  /// True if all work on `stream` is done within a short time.
  static bool is_done_soon(const Stream& stream) {
    std::this_thread::sleep_for(20ms);
    return stream.query();
  }

  std::optional<TransferEngine> engine_;
  std::size_t enqueued_before_ = 0;
};
PENSTOCK_DEVICE_SUITE(EnginePacing);
PENSTOCK_SLOW_LINK_SUITE(EnginePacing);

TEST_P(EnginePacing, LargeCopiesAreWholeInParts) {
  for (const std::size_t bytes : {kSmall, kSmall + 1, 2 * kSmall, kBytes}) {
    const Ends ends = this->ends(bytes);
    const Transfer transfer = copy(ends);
    transfer.synchronize();
    EXPECT_EQ(transfer.report().copies, (bytes + kSmall - 1) / kSmall);
    expect_whole(ends);
  }
}

TEST_P(EnginePacing, OnePartIsQueuedOnEachStream) {
  const Ends ends = this->ends(kBytes);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer transfer = copy(ends);
  expect_stays_enqueued(2 * kSmall);
  EXPECT_FALSE(transfer.query());
  faulty_->hold_back_all(nullptr);
  gate.open();
  transfer.synchronize();
  expect_whole(ends);
}

TEST_P(EnginePacing, ASmallCopyDoesNotWaitBehindALargeOne) {
  const Ends large = this->ends(kBytes, 1);
  const Ends small = this->ends(kSmall, 2);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer held = copy(large);
  faulty_->hold_back_all(nullptr);
  copy(small).synchronize();
  expect_whole(small);
  EXPECT_FALSE(held.query());
  gate.open();
  held.synchronize();
  expect_whole(large);
}

TEST_P(EnginePacing, PartsGrowWhileTheLinkIsBusy) {
  const Ends first = this->ends(kBytes, 1);
  const Ends second = this->ends(kBytes, 2);
  const Ends third = this->ends(kBytes, 3);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer idle = copy(first);
  const Transfer busy = copy(second);
  faulty_->hold_back_all(nullptr);
  gate.open();
  idle.synchronize();
  busy.synchronize();
  // A part has an eighth of what was enqueued since the link was idle, in whole small parts.
  EXPECT_EQ(idle.report().copies, 11U);
  EXPECT_EQ(busy.report().copies, 9U);
  const Transfer later = copy(third);
  later.synchronize();
  EXPECT_EQ(later.report().copies, 11U);
  for (const Ends* ends : {&first, &second, &third}) expect_whole(*ends);
}

TEST_P(EnginePacing, AStreamThatWaitsGetsTheRestAtOnce) {
  const Ends first = this->ends(kBytes, 1);
  const Ends second = this->ends(kBytes, 2);
  const Ends third = this->ends(kBytes, 3);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer transfers[] = {copy(first), copy(second), copy(third)};
  expect_stays_enqueued(2 * kSmall);
  const Stream consumer = device_->create_stream();
  consumer.wait(transfers[1]);  // a host that blocked here would open no gate
  expect_stays_enqueued(2 * kBytes);
  EXPECT_FALSE(consumer.query());
  faulty_->hold_back_all(nullptr);
  gate.open();
  EXPECT_EQ(first_difference(read(second.destination.data(), kBytes, consumer), second.source.bytes()), -1);
  for (const Transfer& transfer : transfers) transfer.synchronize();
  expect_whole(first);
  expect_whole(third);
}

TEST_P(EnginePacing, PartsEnqueuedAtOnceComeOneAfterTheOther) {
  const Ends ends = this->ends(6 * kSmall);
  GatedStream first(*device_);
  GatedStream second(*device_);
  faulty_->hold_back_all(first.word());
  const Transfer transfer = copy(ends);
  expect_stays_enqueued(2 * kSmall);
  faulty_->hold_back_all(nullptr);
  faulty_->hold_back_next_copy(second.word());
  const Stream consumer = device_->create_stream();
  consumer.wait(transfer);
  first.open();
  EXPECT_FALSE(is_done_soon(consumer));
  // The last part is on the stream that is not held back.
  const auto there = read(ends.destination.data() + 4 * kSmall, 2 * kSmall, device_->create_stream());
  EXPECT_EQ(first_difference(there, ends.source.bytes().subspan(4 * kSmall)), 0);
  second.open();
  transfer.synchronize();
  expect_whole(ends);
  EXPECT_EQ(transfer.report().copies, 4U) << "of those, one is under way: they are as large as two";
}

TEST_P(EnginePacing, PartsGrowUpToALargeOne) {
  const Ends ends = this->ends(60 * kSmall);
  const Transfer transfer = copy(ends);
  transfer.synchronize();
  EXPECT_EQ(transfer.report().copies, 16U + 4 + 12);
  expect_whole(ends);
}

TEST_P(EnginePacing, ACopyIsWholeIfItIsToBe) {
  const Ends ends = this->ends(kBytes);
  const Transfer transfer =
      engine_->copy(ends.destination.data(), ends.source.data(), kBytes, {.whole = true});
  transfer.synchronize();
  EXPECT_EQ(transfer.report().copies, 1U);
  expect_whole(ends);
}

TEST_P(EnginePacing, APageableCopyIsTheDriversOwn) {
  const Ends ends = this->ends(kBytes);
  std::vector<std::byte> source(ends.source.bytes().begin(), ends.source.bytes().end());
  const Transfer transfer =
      engine_->copy(ends.destination.data(), source.data(), source.size(), {.path = TransferPath::direct});
  transfer.synchronize();
  EXPECT_EQ(transfer.report().copies, 1U);
  expect_whole(ends);
}

TEST_P(EnginePacing, AHeldBackStreamHoldsUpNoOtherCopies) {
  const Ends held = this->ends(kBytes, 1);
  const Ends free = this->ends(kBytes, 2);
  GatedStream user(*device_);
  const Transfer waiting = copy(held, &user.stream());
  copy(free).synchronize();
  expect_whole(free);
  EXPECT_FALSE(waiting.query());
  user.open();
  waiting.synchronize();
  expect_whole(held);
}

TEST_P(EnginePacing, AHurryThatFailsIsTold) {
  const Ends ends = this->ends(kBytes);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer transfer = copy(ends);
  expect_stays_enqueued(2 * kSmall);
  faulty_->hold_back_all(nullptr);
  faulty_->fail(Entry::copy);
  std::thread opens([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  const Stream consumer = device_->create_stream();
  EXPECT_THROW(consumer.wait(transfer), DeviceError);
  opens.join();
}

TEST_P(EnginePacing, NoPartComesBeforeTheWorkThatItComesAfter) {
  const Ends ends = this->ends(kBytes);
  GatedStream user(*device_);
  const Transfer transfer = copy(ends, &user.stream());
  const Stream consumer = device_->create_stream();
  consumer.wait(transfer);
  EXPECT_FALSE(is_done_soon(consumer));
  const auto there = read(ends.destination);
  for (std::size_t part = 0; part < kBytes; part += kSmall) {
    EXPECT_EQ(first_difference(std::span(there).subspan(part), ends.source.bytes().subspan(part)), 0);
  }
  user.open();
  transfer.synchronize();
  expect_whole(ends);
}

TEST_P(EnginePacing, ATransferIsDoneWhenBothStreamsAre) {
  for (const std::size_t parts : {2U, 3U}) {
    for (std::size_t held = 1; held <= parts; ++held) {
      const Ends ends = this->ends(parts * kSmall);
      GatedStream gate(*device_);
      std::size_t copies = 0;
      faulty_->before(Entry::copy, [&] {
        if (++copies == held) faulty_->hold_back_next_copy(gate.word());
      });
      const Transfer transfer = copy(ends);
      const Stream consumer = device_->create_stream();
      consumer.wait(transfer);
      faulty_->before(Entry::copy, {});
      EXPECT_FALSE(is_done_soon(consumer));
      EXPECT_FALSE(transfer.query());
      gate.open();
      transfer.synchronize();
      expect_whole(ends);
    }
  }
}

TEST_P(EnginePacing, AFailedPartEndsItsTransferOnceTheOthersAreDone) {
  // The copier first asks whether the link is idle, which does not fail the transfer.
  constexpr std::pair<Entry, std::size_t> kFailures[] = {
      {Entry::copy, 2}, {Entry::event_query, 3}, {Entry::event_record, 2}};
  for (const auto& [entry, nth] : kFailures) {
    const Ends failing = this->ends(kBytes, 1);
    const Ends next = this->ends(kBytes, 2);
    faulty_->fail(entry, nth);
    const Transfer failed = copy(failing);
    EXPECT_THROW(failed.synchronize(), DeviceError);
    faulty_->heal();
    const auto there = read(failing.destination);
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(first_difference(read(failing.destination), there), -1);
    const Stream consumer = device_->create_stream();
    EXPECT_THROW(consumer.wait(failed), DeviceError);
    copy(next).synchronize();
    expect_whole(next);
  }
}

TEST_P(EnginePacing, AFailedTransferHasDrained) {
  const Ends ends = this->ends(kBytes);
  for (const bool tells_late : {false, true, true}) {  // the part is on one stream, and then on the other
    GatedStream gate(*device_);
    faulty_->hold_back_next_copy(gate.word());
    faulty_->fail(Entry::copy, 2);
    // The first wait may only report a failure of earlier work.
    if (tells_late) faulty_->fail(Entry::stream_synchronize);
    const Transfer failed = copy(ends);
    std::this_thread::sleep_for(5ms);
    EXPECT_FALSE(failed.query());  // its first part may still write
    gate.open();
    EXPECT_THROW(failed.synchronize(), DeviceError);
  }
}

TEST_P(EnginePacing, AnEngineThatEndsMovesWhatWaits) {
  const Ends first = this->ends(kBytes, 1);
  const Ends second = this->ends(kBytes, 2);
  GatedStream gate(*device_);
  faulty_->hold_back_all(gate.word());
  const Transfer transfers[] = {copy(first), copy(second)};
  expect_stays_enqueued(2 * kSmall);
  std::thread end([&] { engine_.reset(); });
  EXPECT_TRUE(comes_true([&] { return enqueued() == 2 * kBytes; }));
  faulty_->hold_back_all(nullptr);
  gate.open();
  end.join();
  for (const Transfer& transfer : transfers) EXPECT_TRUE(transfer.query());
  expect_whole(first);
  expect_whole(second);
}

TEST_P(EnginePacing, ManyThreadsCopyAndWait) {
  constexpr std::size_t kThreads = 4;
  std::vector<Ends> all;
  for (std::size_t i = 0; i < kThreads; ++i) all.push_back(ends(kBytes, i));
  std::vector<std::thread> threads;
  for (const Ends& own : all) {
    threads.emplace_back([&] {
      const Stream consumer = device_->create_stream();
      for (int turn = 0; turn < 10; ++turn) {
        const Transfer transfer = copy(own);
        if (turn % 2 == 0) consumer.wait(transfer);
        transfer.synchronize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ends& ends : all) expect_whole(ends);
}

}  // namespace
}  // namespace penstock::testing
