#include "support/comes_true.hpp"
#include "support/gate.hpp"
#include "transfer/engine_fixture.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

/// Chunks of staged transfers and copies that are not cut take turns on two streams.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCopy = 4096;
constexpr std::size_t kPart = 2 * kCopy;  // of what follows an idle link
constexpr std::size_t kLargePart = 6 * kCopy;
constexpr std::size_t kRound = 4 * kCopy;  // of packed transfers

class EngineTurns : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    DeviceTuning tuning = device_->info().tuning;
    tuning.small_part_bytes = kPart / 2;
    tuning.large_part_bytes = kLargePart / 2;
    tuning.first_staged_chunk = kCopy;
    tuning.packing.window_bytes = kRound;
    faulty_->tune(tuning);
    engine_.emplace(*faulty_device_, TransferOptions{.threads = 1, .chunk_bytes = kCopy});
  }

  /// Locked memory with bytes of its own, and memory on the device for it.
  struct Ends {
    Buffer source;
    Buffer destination;
  };
  Ends ends(std::size_t copies) {
    Ends made{pinned_->allocate(copies * kCopy), poisoned_on_device(copies * kCopy)};
    const auto values = random_bytes(copies * kCopy, copies);
    std::memcpy(made.source.data(), values.data(), values.size());
    return made;
  }

  /// Each copy is a transfer of its own.
  std::vector<Transfer> copy_each(const Ends& ends, const CopyOptions& options = {}) {
    std::vector<Transfer> transfers;
    for (std::size_t at = 0; at < ends.source.size(); at += kCopy) {
      transfers.push_back(
          engine_->copy(ends.destination.data() + at, ends.source.data() + at, kCopy, options));
    }
    return transfers;
  }

  Transfer stage(const Ends& ends, CopyOptions options = {}) {
    options.path = TransferPath::staged;
    return engine_->copy(ends.destination.data(), ends.source.data(), ends.source.size(), options);
  }

  /// Has the stream of the `nth` copy from now wait for the gate, and that copy with it.
  void hold_back(std::size_t nth, const GatedStream& gate) {
    const std::size_t earlier = faulty_->calls(Entry::copy);
    faulty_->before(Entry::copy, [this, number = earlier + nth, word = gate.word()] {
      if (faulty_->calls(Entry::copy) == number) faulty_->hold_back_next_copy(word);
    });
  }

  [[nodiscard]] bool has_come(const Ends& ends, std::size_t copy) {
    const auto there = read(ends.destination.data() + copy * kCopy, kCopy, device_->create_stream());
    return std::ranges::equal(there, ends.source.bytes().subspan(copy * kCopy, kCopy));
  }

  void expect_whole(const Ends& ends) {
    EXPECT_EQ(first_difference(read(ends.destination), ends.source.bytes()), -1);
  }

  static void synchronize(const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) transfer.synchronize();
  }

  std::optional<TransferEngine> engine_;
};
PENSTOCK_DEVICE_SUITE(EngineTurns);
PENSTOCK_SLOW_LINK_SUITE(EngineTurns);

TEST_P(EngineTurns, CopiesThatAreNotCutTakeTurns) {
  const Ends ends = this->ends(6);
  faulty_->note_copies();
  synchronize(copy_each(ends));
  EXPECT_EQ(faulty_->in_a_row(), std::vector<std::size_t>(3, kPart));
  expect_whole(ends);
}

TEST_P(EngineTurns, ChunksTakeTurns) {
  const Ends ends = this->ends(15);
  faulty_->note_copies();
  stage(ends).synchronize();
  std::vector<std::size_t> expected(7, kPart);
  expected.push_back(kCopy);
  EXPECT_EQ(faulty_->in_a_row(), expected);
  expect_whole(ends);
}

TEST_P(EngineTurns, ALargerChunkIsAPartOfItsOwn) {
  engine_.emplace(*faulty_device_, TransferOptions{.threads = 1, .chunk_bytes = 3 * kCopy});
  const Ends ends = this->ends(40);
  faulty_->note_copies();
  stage(ends).synchronize();
  EXPECT_LE(std::ranges::max(faulty_->in_a_row()), kLargePart);
  EXPECT_GE(faulty_->in_a_row().size(), 40 * kCopy / kLargePart);
  expect_whole(ends);
}

TEST_P(EngineTurns, APartBeginsOnceTheOneBeforeIsDone) {
  const Ends ends = this->ends(8);
  for (const std::size_t held : {2U, 4U}) {  // the last copy of a part, on each stream
    const Ends here{pinned_->allocate(ends.source.size()), poisoned_on_device(ends.source.size())};
    std::memcpy(here.source.data(), ends.source.data(), ends.source.size());
    engine_.emplace(*faulty_device_, TransferOptions{.threads = 1, .chunk_bytes = kCopy});
    GatedStream gate(*device_);
    hold_back(held, gate);
    const std::vector<Transfer> transfers = copy_each(here);
    std::this_thread::sleep_for(20ms);
    for (std::size_t copy = held - 1; copy < transfers.size(); ++copy) {
      EXPECT_FALSE(transfers[copy].query()) << copy;
      EXPECT_FALSE(has_come(here, copy)) << copy;
    }
    gate.open();
    synchronize(transfers);
    faulty_->before(Entry::copy, {});
    expect_whole(here);
  }
}

TEST_P(EngineTurns, PartsGrowWhileTheLinkIsBusyAndAreSmallAfterARest) {
  const Ends many = this->ends(60);
  const Ends one = this->ends(1);
  const Ends few = this->ends(6);
  GatedStream gate(*device_);
  hold_back(1, gate);
  faulty_->note_copies();
  const std::vector<Transfer> transfers = copy_each(many);
  gate.open();
  synchronize(transfers);
  const std::vector<std::size_t> busy = faulty_->in_a_row();
  EXPECT_TRUE(std::is_sorted(busy.begin(), busy.end() - 1));
  EXPECT_EQ(busy.front(), kPart);
  EXPECT_EQ(busy[busy.size() - 2], kLargePart);
  stage(one).synchronize();
  faulty_->note_copies();
  stage(few).synchronize();
  EXPECT_EQ(faulty_->in_a_row(), std::vector<std::size_t>(3, kPart));
  for (const Ends* ends : {&many, &one, &few}) expect_whole(*ends);
}

TEST_P(EngineTurns, WholeTransfersTakeNoTurns) {
  const Ends staged = this->ends(15);
  const Ends copied = this->ends(6);
  const Ends packed = this->ends(3 * kRound / kCopy);
  faulty_->note_copies();
  stage(staged, {.whole = true}).synchronize();
  synchronize(copy_each(copied, {.whole = true}));
  engine_
      ->copy(packed.destination.data(), packed.source.data(), packed.source.size(),
             {.path = TransferPath::packed, .whole = true})
      .synchronize();
  EXPECT_EQ(faulty_->in_a_row(), std::vector<std::size_t>{21 * kCopy + 3 * kRound});
  expect_whole(packed);
  expect_whole(staged);
  expect_whole(copied);
}

TEST_P(EngineTurns, AStagedTransferIsDoneWhenBothStreamsAre) {
  for (const bool whole : {false, true}) {
    for (std::size_t held = 1; held <= 4; ++held) {
      const Ends ends = this->ends(4);
      GatedStream gate(*device_);
      hold_back(held, gate);
      const Transfer transfer = stage(ends, {.whole = whole});
      transfer.synchronize_source();
      std::this_thread::sleep_for(20ms);
      EXPECT_FALSE(transfer.query());
      faulty_->before(Entry::copy, {});
      gate.open();
      transfer.synchronize();
      expect_whole(ends);
    }
  }
}

TEST_P(EngineTurns, NoCopyComesBeforeTheWorkThatItComesAfter) {
  const Ends staged = this->ends(4);
  const Ends copied = this->ends(4);
  GatedStream user(*device_);
  const std::vector<Transfer> transfers = copy_each(copied, {.after = &user.stream()});
  const Transfer transfer = stage(staged, {.after = &user.stream()});
  transfer.synchronize_source();
  std::this_thread::sleep_for(20ms);
  for (std::size_t copy = 0; copy < 4; ++copy) {
    EXPECT_FALSE(has_come(copied, copy)) << copy;
    EXPECT_FALSE(has_come(staged, copy)) << copy;
  }
  user.open();
  synchronize(transfers);
  transfer.synchronize();
  expect_whole(copied);
  expect_whole(staged);
}

TEST_P(EngineTurns, AFailedStagedTransferHasDrained) {
  const Ends ends = this->ends(8);
  for (const std::size_t held : {2U, 3U}) {  // on each stream
    GatedStream gate(*device_);
    hold_back(held, gate);
    faulty_->fail(Entry::copy, 4);
    const Transfer failed = stage(ends);
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(failed.query());  // the chunk that is held back may still write
    faulty_->before(Entry::copy, {});
    gate.open();
    EXPECT_THROW(failed.synchronize(), DeviceError);
    stage(ends).synchronize();
    expect_whole(ends);
  }
}

TEST_P(EngineTurns, AFailedCopyHasDrained) {
  const Ends ends = this->ends(8);
  GatedStream gate(*device_);
  faulty_->hold_back_next_copy(gate.word());
  faulty_->fail(Entry::event_record, 2);  // its copy is enqueued
  const Transfer held = engine_->copy(ends.destination.data(), ends.source.data(), kCopy);
  std::thread opens([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  const Transfer failed = engine_->copy(ends.destination.data() + kCopy, ends.source.data() + kCopy, kCopy);
  EXPECT_TRUE(has_come(ends, 1));
  EXPECT_THROW(failed.synchronize(), DeviceError);
  opens.join();
  held.synchronize();
  synchronize(copy_each(ends));
  expect_whole(ends);
}

TEST_P(EngineTurns, TransfersOfManyThreadsTakeTurns) {
  std::vector<Ends> all;
  for (std::size_t i = 0; i < 4; ++i) all.push_back(ends(16 + i));
  std::vector<std::thread> threads;
  for (const Ends& own : all) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 10; ++turn) {
        const std::vector<Transfer> transfers = copy_each(own);
        stage(own).synchronize();
        synchronize(transfers);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ends& ends : all) expect_whole(ends);
}

}  // namespace
}  // namespace penstock::testing
