#include "doctor/recorder/totals.hpp"

#include "doctor/read/recording.hpp"
#include "doctor/read/recording_format.hpp"
#include "doctor/recorder/recording_file.hpp"
#include "doctor/rules/findings.hpp"
#include "support/matchers.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using recorder::add_to_totals;
using recorder::kMostLooks;
using recorder::RecordingFile;
using recording::kOtherTotals;
using recording::Record;
using recording::RecordType;
using recording::TextType;
using recording::Total;
using recording::TotalKey;
using ::testing::Each;

constexpr std::int64_t kSecond = 1'000'000'000;

Record call_of(std::uint64_t place, CallKind kind = CallKind::copy, std::int64_t begin = 0) {
  Record record{};
  record.type = RecordType::call;
  record.detail = static_cast<std::uint8_t>(kind);
  record.place = place;
  record.begin = begin;
  record.end = begin + 10;
  return record;
}

Record copy_of(std::uint8_t kind, std::uint16_t memory, std::uint16_t device, std::int64_t begin = 0) {
  Record record{};
  record.type = RecordType::copy;
  record.detail = kind;
  record.extra = memory;
  record.device = device;
  record.bytes = 1000;
  record.begin = begin;
  record.end = begin + 10;
  return record;
}

Record work_of(std::uint16_t label, std::uint16_t device, std::int64_t begin = 0) {
  Record record{};
  record.type = RecordType::work;
  record.extra = label;
  record.device = device;
  record.begin = begin;
  record.end = begin + 10;
  return record;
}

/// Those of keys, as the recorder has them in its file.
std::span<const Total> slots_of(const std::vector<Total>& totals) {
  return std::span(totals).subspan(kOtherTotals);
}

std::uint64_t count_of(std::span<const Total> totals) {
  std::uint64_t count = 0;
  for (const Total& total : totals) count += total.count;
  return count;
}

TEST(RunTotals, AreOfWhatRecordsHaveInCommon) {
  std::vector<Total> totals(kOtherTotals + 64);
  const std::vector<Record> different{call_of(1),           call_of(2),           call_of(1, CallKind::pin),
                                      copy_of(1, 0x301, 0), copy_of(2, 0x301, 0), copy_of(1, 0x302, 0),
                                      copy_of(1, 0x301, 1), work_of(9, 0),        work_of(kMemorySet, 0),
                                      work_of(9, 1)};
  for (const Record& record : different) add_to_totals(totals, record, 0);
  EXPECT_EQ(std::ranges::count(slots_of(totals), 1U, &Total::count), 10);
  add_to_totals(totals, call_of(1), 70);
  add_to_totals(totals, call_of(1, CallKind::copy, 99), 30);
  add_to_totals(totals, work_of(11, 0), 0);  // another kernel
  Record range{};
  range.type = RecordType::range;
  add_to_totals(totals, range, 0);
  EXPECT_EQ(count_of(totals), 13U);
  const auto key = std::bit_cast<std::uint64_t>(recording::total_key(call_of(1)));
  const auto calls = std::ranges::find(totals, key, &Total::key);
  ASSERT_NE(calls, totals.end());
  EXPECT_EQ(calls->count, 3U);
  EXPECT_EQ(calls->bytes, 100U);
  EXPECT_EQ(calls->nanoseconds, 30U);
}

TEST(RunTotals, ARecordThatEndsBeforeItBeginsTakesNoTime) {
  std::vector<Total> totals(kOtherTotals + 4);
  Record record = call_of(1);
  record.end = record.begin - 5;
  add_to_totals(totals, record, 0);
  EXPECT_EQ(std::ranges::max(totals, {}, &Total::count).nanoseconds, 0U);
}

TEST(RunTotals, CountWhatHasNoRoomAmongTheOthers) {
  std::vector<Total> totals(kOtherTotals + 4);
  for (std::uint64_t place = 1; place <= 10; ++place) add_to_totals(totals, call_of(place), 5);
  add_to_totals(totals, copy_of(1, 0x301, 0), 0);
  EXPECT_THAT(slots_of(totals), Each(::testing::Field(&Total::count, 1U)));
  const Total& calls = totals[static_cast<std::size_t>(RecordType::call)];
  EXPECT_EQ(calls.key, 0U);
  EXPECT_EQ(calls.count, 6U);
  EXPECT_EQ(calls.bytes, 30U);
  EXPECT_EQ(calls.nanoseconds, 60U);
  EXPECT_EQ(totals[static_cast<std::size_t>(RecordType::copy)].bytes, 1000U);
  add_to_totals(totals, call_of(1), 5);
  EXPECT_EQ(calls.count, 6U) << "it has a slot";
}

TEST(RunTotals, LookForASlotOnlySoOften) {
  std::vector<Total> totals(kOtherTotals + 4 * kMostLooks);
  add_to_totals(totals, call_of(1), 0);
  const auto slots = std::span(totals).subspan(kOtherTotals);
  const auto home = static_cast<std::size_t>(std::ranges::find(slots, 1U, &Total::count) - slots.begin());
  const auto fill = [&](std::size_t taken) {
    std::ranges::fill(totals, Total{});
    for (std::size_t i = 0; i < taken; ++i) slots[(home + i) % slots.size()].key = 77;
    add_to_totals(totals, call_of(1), 0);
  };
  fill(kMostLooks - 1);
  EXPECT_EQ(slots[(home + kMostLooks - 1) % slots.size()].count, 1U);
  fill(kMostLooks);
  EXPECT_EQ(totals[static_cast<std::size_t>(RecordType::call)].count, 1U);
}

/// Runs `act` with the number of each thread, all at once.
template <typename Act>
void run_at_once(int threads, const Act& act) {
  std::atomic<int> waiting{threads};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      act(i);
    });
  }
  for (std::thread& thread : all) thread.join();
}

TEST(RunTotals, AreExactIfThreadsAddAtOnce) {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kPlaces = 200;
  for (int round = 0; round < 50; ++round) {
    std::vector<Total> totals(kOtherTotals + 1024);
    run_at_once(kThreads, [&](int) {
      for (std::uint64_t i = 0; i < 3 * kPlaces; ++i) add_to_totals(totals, call_of(1 + i % kPlaces), 7);
    });
    for (std::uint64_t place = 1; place <= kPlaces; ++place) {
      const auto key = std::bit_cast<std::uint64_t>(recording::total_key(call_of(place)));
      ASSERT_EQ(std::ranges::count(totals, key, &Total::key), 1) << place;
      const Total& total = *std::ranges::find(totals, key, &Total::key);
      ASSERT_EQ(total.count, 3U * kThreads);
      ASSERT_EQ(total.bytes, 3U * kThreads * 7);
      ASSERT_EQ(total.nanoseconds, 3U * kThreads * 10);
    }
  }
}

/// Two threads call `act` with their numbers, at the same moment, thousands of times. `look` is called by one
/// of them after each time.
template <typename Act, typename Look>
void race(const Act& act, const Look& look) {
  constexpr int kRounds = 4000;
  std::atomic<int> arrived{0};
  const auto meet = [&arrived](int threads) {
    ++arrived;
    for (int looks = 0; arrived.load() < threads; ++looks) {
      if (looks > 1000) std::this_thread::yield();
    }
  };
  run_at_once(2, [&](int thread) {
    for (int round = 0; round < kRounds; ++round) {
      meet(4 * round + 2);
      act(thread);
      meet(4 * round + 4);
      if (thread == 0) look();
    }
  });
}

TEST(RunTotals, TakeASlotForOneThreadAlone) {
  std::vector<Total> totals(kOtherTotals + 1);
  Total& slot = totals.back();
  Total& others = totals[static_cast<std::size_t>(RecordType::call)];
  std::uint64_t wrong = 0;
  race([&](int thread) { add_to_totals(totals, call_of(static_cast<std::uint64_t>(1 + thread)), 0); },
       [&] {
         wrong += slot.count != 1 || others.count != 1 ? 1 : 0;
         slot = others = {};
       });
  EXPECT_EQ(wrong, 0U);
}

TEST(RunTotals, KnowTheEarliestTime) {
  std::int64_t first = 0;
  std::uint64_t wrong = 0;
  race([&](int thread) { recorder::keep_earliest(first, 7 + thread); },
       [&] {
         wrong += first != 7 ? 1 : 0;
         first = 0;
       });
  EXPECT_EQ(wrong, 0U);
  recorder::keep_earliest(first, 9);
  recorder::keep_earliest(first, 8);
  recorder::keep_earliest(first, 10);
  EXPECT_EQ(first, 8);
}

/// A recording of steps of 1 ms from 5 s on, in whose program the lines 1 and 2 copy in turn.
class TotalsOfAFile : public ::testing::Test {
 protected:
  explicit TotalsOfAFile(std::uint64_t capacity = 40) : file_(*new RecordingFile) {
    EXPECT_TRUE(file_.open(folder_.path().c_str(), capacity));
    for (std::uint32_t line = 1; line <= 2; ++line) {
      const std::uint32_t head[] = {line, 8};
      file_.add_text(TextType::frame, head, sizeof head, "train.py", "main");
      const std::uint32_t frame = line - 1;
      file_.add_text(TextType::stack, &frame, sizeof frame, {});
    }
    file_.header().state = recording::State::finished;
  }

  void add_steps(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = 5 * kSecond + i * 1'000'000;
      Record call = call_of(static_cast<std::uint64_t>(1 + i % 2), CallKind::copy, begin);
      call.end = begin + 100'000;
      file_.add(call, 500);
      file_.add(copy_of(1, 0x301, 0, begin + 1000));
      file_.add(call_of(0, CallKind::launch, begin + 200'000));
      Record kernel = work_of(9, 0, begin + 250'000);
      kernel.end = begin + 1'000'000;
      file_.add(kernel);
    }
  }

  [[nodiscard]] Recording read() const { return read_recordings(folder_.path()).at(0); }
  [[nodiscard]] fs::path path() const { return fs::directory_iterator(folder_.path())->path(); }
  /// The file's own, where they are mapped.
  [[nodiscard]] std::span<Total> totals() const {
    auto* const base = reinterpret_cast<std::byte*>(&file_.header());
    return {reinterpret_cast<Total*>(base + recording::kTotalsOffset), kOtherTotals + recording::kTotalSlots};
  }
  /// A slot that no key has.
  [[nodiscard]] Total& free_slot() const {
    return *std::ranges::find(totals().subspan(kOtherTotals), 0U, &Total::key);
  }
  void expect_no_totals(const std::string& why) const {
    const Recording recording = read();
    EXPECT_FALSE(recording.whole_run) << why;
    EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("Totals of the whole run: the recording is")))
        << why;
    EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("The recording keeps the last"))) << why;
  }

  test::TempDirectory folder_;
  RecordingFile& file_;  // its mapping stays, as a program's does
};

TEST_F(TotalsOfAFile, AreOfTheWholeRunIfTheRingWentRound) {
  add_steps(1000);
  const Recording recording = read();
  EXPECT_THAT(recording.timeline.copies, SizeIs(10));
  ASSERT_TRUE(recording.whole_run);
  const WholeRun& run = *recording.whole_run;
  EXPECT_DOUBLE_EQ(run.seconds, 1);
  EXPECT_DOUBLE_EQ(run.timeline_seconds, 0.01);
  ASSERT_THAT(run.copies, SizeIs(1));
  const RunSum copies = run.copies.at({0, CopyDirection::h2d, MemoryKind::pageable, MemoryKind::device});
  EXPECT_EQ(copies.count, 1000U);
  EXPECT_EQ(copies.bytes, 1'000'000U);
  EXPECT_DOUBLE_EQ(copies.seconds, 1e-5);
  ASSERT_THAT(run.work, SizeIs(1));
  const RunSum kernels = run.work.at({0, false});
  EXPECT_EQ(kernels.count, 1000U);
  EXPECT_DOUBLE_EQ(kernels.seconds, 0.75);
  std::vector<std::string> calls;
  for (const RunLine& line : run.lines) {
    calls.push_back((line.name ? recording.timeline.names[*line.name] : "none") + ", " +
                    std::string(line.call) + ": " + std::to_string(line.sum.count) + ", " +
                    std::to_string(line.sum.bytes));
  }
  EXPECT_THAT(calls, ::testing::UnorderedElementsAre("train.py(1): main, copy: 500, 250000",
                                                     "train.py(2): main, copy: 500, 250000",
                                                     "none, kernel launch: 1000, 0"));
  EXPECT_EQ(run.other_calls.count, 0U);
}

TEST_F(TotalsOfAFile, JoinKindsOfCopiesThatAreTheSame) {
  add_steps(10);
  file_.add(copy_of(3, 0x301, 0, 6 * kSecond));  // to an array
  file_.add(copy_of(2, 0x203, 1, 6 * kSecond));
  file_.add(copy_of(9, 0x101, 1, 6 * kSecond));  // within the host
  file_.add(work_of(kMemorySet, 1, 6 * kSecond));
  Record wait{};
  wait.type = RecordType::wait;
  wait.begin = 6 * kSecond;
  wait.end = 7 * kSecond;
  wait.detail = 1;
  wait.place = 2;
  file_.add(wait);
  const Recording recording = read();
  ASSERT_TRUE(recording.whole_run);
  const WholeRun& run = *recording.whole_run;
  ASSERT_THAT(run.copies, SizeIs(2));
  EXPECT_EQ(run.copies.begin()->second.count, 11U);
  EXPECT_TRUE(run.copies.contains({1, CopyDirection::d2h, MemoryKind::device, MemoryKind::pinned}));
  ASSERT_THAT(run.work, SizeIs(2));
  EXPECT_TRUE(run.work.contains({1, true}));
  const auto waits = std::ranges::find(run.lines, "penstock.Loader.__next__", &RunLine::call);
  ASSERT_NE(waits, run.lines.end());
  EXPECT_EQ(recording.timeline.names.at(waits->name.value_or(99)), "train.py(2): main");
  EXPECT_DOUBLE_EQ(waits->sum.seconds, 1);
}

TEST_F(TotalsOfAFile, OfAnEarlierRecorderAreNotThere) {
  add_steps(100);
  file_.header().totals_offset = 0;
  file_.header().first = 0;
  const Recording recording = read();
  EXPECT_FALSE(recording.whole_run);
  EXPECT_THAT(recording.timeline.copies, SizeIs(10));
  EXPECT_THAT(recording.timeline.notes, Contains("Totals of the whole run: an earlier recorder kept none."));
}

TEST_F(TotalsOfAFile, AreLeftOutIfOneIsDamaged) {
  add_steps(100);
  ASSERT_TRUE(read().whole_run);
  Total& slot = free_slot();
  const auto try_key = [&](TotalKey key, const std::string& why) {
    slot = {std::bit_cast<std::uint64_t>(key), 1, 1, 1};
    expect_no_totals(why);
    slot = {};
  };
  try_key({RecordType::copy, 1, 0x301, 1024}, "a device that is none");
  try_key({RecordType::work, 0, 0, 1024}, "a device that is none");
  try_key({RecordType::work, 2, 0, 0}, "work that is none");
  try_key({RecordType::call, 200, 0, 1}, "a call of no kind");
  try_key({RecordType::wait, 200, 0, 1}, "a wait for no loader");
  try_key({RecordType::range, 0, 0, 0}, "ranges have no totals");
  try_key({static_cast<RecordType>(77), 0, 0, 0}, "a record of no type");
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 61;
  const auto key = std::bit_cast<std::uint64_t>(TotalKey{RecordType::call, 0, 0, 1});
  for (const Total& total : {Total{key, kHuge, 0, 0}, Total{key, 0, kHuge, 0}, Total{key, 0, 0, kHuge}}) {
    slot = total;
    expect_no_totals("a sum of no run");
  }
  slot = {key, 0, 0, 0};
  EXPECT_TRUE(read().whole_run) << "its program ended before it counted";
  totals()[1].count = kHuge;
  expect_no_totals("a sum of others");
}

TEST_F(TotalsOfAFile, AreLeftOutIfTheRunsBeginningIsDamaged) {
  add_steps(100);
  for (const std::int64_t first :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    file_.header().first = first;
    expect_no_totals(std::to_string(first));
  }
  file_.header().first = 6 * kSecond;  // after the timeline's
  const Recording recording = read();
  ASSERT_TRUE(recording.whole_run);
  EXPECT_DOUBLE_EQ(recording.whole_run->seconds, recording.whole_run->timeline_seconds);
}

TEST_F(TotalsOfAFile, LongerThanItsRunIsNone) {
  for (int i = 0; i < 100; ++i) file_.add(work_of(9, 0, std::int64_t{1} << 60));
  ASSERT_TRUE(read().whole_run);
  file_.header().first = 1;
  expect_no_totals("a run of forty years");
}

TEST_F(TotalsOfAFile, AreRefusedInAPlaceThatIsNone) {
  add_steps(100);
  const std::uint64_t right = file_.header().totals_offset;
  for (const std::uint64_t offset : {std::uint64_t{1}, recording::kTextOffset - sizeof(Total), right + 1,
                                     recording::kRingOffset + sizeof(Total),
                                     recording::kRingOffset - sizeof(Total), std::uint64_t{1} << 63}) {
    file_.header().totals_offset = offset;
    EXPECT_THROW((void)read(), Error) << offset;
  }
  file_.header().totals_offset = recording::kRingOffset - kOtherTotals * sizeof(Total);
  EXPECT_TRUE(read().whole_run) << "a table without slots";
}

TEST_F(TotalsOfAFile, CutAnywhereGiveWhatIsComplete) {
  add_steps(100);
  for (const std::uint64_t size :
       {recording::kTotalsOffset, recording::kTotalsOffset + 100, recording::kRingOffset - 1,
        recording::kRingOffset, recording::kRingOffset + 100}) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    std::ifstream(path(), std::ios::binary)
        .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
    const Recording recording = parse_recording(
        [&](std::uint64_t offset, std::span<std::byte> destination) {
          const std::size_t count =
              std::min<std::uint64_t>(destination.size(), size - std::min(offset, size));
          if (count > 0) std::memcpy(destination.data(), bytes.data() + offset, count);
          return count;
        },
        "a recording");
    EXPECT_EQ(recording.whole_run.has_value(), size > recording::kRingOffset) << size;
    EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("cut short"))) << size;
  }
}

TEST_F(TotalsOfAFile, AreCutShortIfTheirEndIsMissing) {
  add_steps(100);
  std::string bytes(fs::file_size(path()), '\0');
  std::ifstream(path(), std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const Recording recording = parse_recording(
      [&](std::uint64_t offset, std::span<std::byte> destination) {
        std::memcpy(destination.data(), bytes.data() + offset, destination.size());
        return offset == recording::kTotalsOffset ? destination.size() - 1 : destination.size();
      },
      "a recording");
  EXPECT_FALSE(recording.whole_run);
  EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("Totals of the whole run: the recording is")));
}

TEST(RecordingCorpus, HasWholeRuns) {
  const fs::path folder = fs::path(PENSTOCK_SOURCE "/fuzz/corpus") / "recording";
  const auto run_of = [&folder](const char* name) { return read_recording(folder / name).whole_run; };
  EXPECT_TRUE(run_of("ok-totals"));
  EXPECT_EQ(run_of("ok-totals-others").value_or(WholeRun{}).other_calls.count, 5U);
  for (const char* const name :
       {"ok-totals-damaged", "ok-totals-huge", "ok-totals-far", "ok-totals-unused", "ok-ring"})
    EXPECT_FALSE(run_of(name)) << name;
}

}  // namespace
}  // namespace penstock
