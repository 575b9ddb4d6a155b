#include "doctor/read/recording.hpp"

#include "doctor/read/recording_format.hpp"
#include "doctor/recorder/recording_file.hpp"
#include "doctor/rules/findings.hpp"
#include "doctor/timeline/frame_names.hpp"
#include "support/matchers.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using recorder::RecordingFile;
using recording::Header;
using recording::Record;
using recording::RecordType;
using recording::TextType;

/// A recording in memory. Its text is short, so that damage is likely to matter.
class Bytes {
 public:
  explicit Bytes(std::uint64_t capacity) {
    std::memcpy(header_.magic, recording::kMagic, sizeof header_.magic);
    header_.version = recording::kVersion;
    header_.record_bytes = sizeof(Record);
    header_.process = 77;
    header_.capacity = capacity;
    header_.state = recording::State::finished;
  }

  void text(TextType type, const std::string& payload) {
    const auto size = static_cast<std::uint32_t>(payload.size());
    append(&size, sizeof size);
    append(&type, sizeof type);
    text_ += payload;
    text_.resize((text_.size() + 3) / 4 * 4);
  }
  static std::string number(std::uint32_t value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  template <typename... Numbers>
  void numbers(TextType type, Numbers... values) {
    text(type, (number(values) + ...));
  }
  void frame(std::uint32_t line, const std::string& file, const std::string& function) {
    text(TextType::frame, number(line) + number(static_cast<std::uint32_t>(file.size())) + file + function);
  }

  void add(Record record) {
    const std::uint64_t index = header_.written++;
    record.sequence = static_cast<std::uint32_t>(index + 1);
    if (ring_.size() <= index % header_.capacity) ring_.resize(index % header_.capacity + 1);
    ring_[index % header_.capacity] = record;
  }
  /// 1 ms: a copy, its call, and a kernel with its launch.
  void step(std::int64_t begin, std::uint64_t place = 1) {
    const auto correlation = static_cast<std::uint32_t>(begin / 1000);
    Record record{};
    record.begin = begin;
    record.end = begin + 200'000;
    record.type = RecordType::call;
    record.detail = static_cast<std::uint8_t>(CallKind::copy);
    record.correlation = correlation;
    record.stream = 5;
    record.place = place;
    add(record);
    record.type = RecordType::copy;
    record.detail = 1;
    record.extra = 1 | 3 << 8;
    record.bytes = 2'000'000;
    record.stream = 7;
    add(record);
    record = {};
    record.begin = begin + 210'000;
    record.end = begin + 215'000;
    record.type = RecordType::call;
    record.stream = 5;
    add(record);
    record.begin = begin + 220'000;
    record.end = begin + 900'000;
    record.type = RecordType::work;
    record.extra = 9;
    record.stream = 7;
    add(record);
  }

  [[nodiscard]] std::vector<std::byte> bytes() {
    header_.text_bytes = text_.size();
    header_.ring_offset = recording::kTextOffset + text_.size();
    std::vector<std::byte> all(header_.ring_offset + ring_.size() * sizeof(Record));
    std::memcpy(all.data(), &header_, sizeof header_);
    std::memcpy(all.data() + recording::kTextOffset, text_.data(), text_.size());
    std::memcpy(all.data() + header_.ring_offset, ring_.data(), ring_.size() * sizeof(Record));
    return all;
  }
  Header& header() { return header_; }
  std::vector<Record>& ring() { return ring_; }

 private:
  void append(const void* from, std::size_t count) { text_.append(static_cast<const char*>(from), count); }

  Header header_{};
  std::string text_;
  std::vector<Record> ring_;
};

Recording parse(const std::vector<std::byte>& bytes) {
  const auto at = [&](std::uint64_t offset, std::span<std::byte> destination) {
    const std::size_t count =
        offset < bytes.size() ? std::min(destination.size(), bytes.size() - static_cast<std::size_t>(offset))
                              : 0;
    if (count > 0) std::memcpy(destination.data(), bytes.data() + offset, count);
    return count;
  };
  return parse_recording(at, "a recording");
}

Bytes ten_steps(std::uint64_t capacity = 100) {
  Bytes bytes(capacity);
  bytes.text(TextType::device, Bytes::number(0) + "A GPU");
  bytes.frame(30, "/usr/lib/python3/dist-packages/torch/_tensor.py", "to");
  bytes.frame(12, "train.py", "main");
  bytes.numbers(TextType::stack, 0, 1);
  for (int i = 0; i < 10; ++i) bytes.step(5'000'000'000 + i * 1'000'000);
  return bytes;
}

TEST(Recordings, TellWhatWasRecorded) {
  const Recording recording = parse(ten_steps().bytes());
  EXPECT_EQ(recording.process, 77);
  const Timeline& timeline = recording.timeline;
  EXPECT_EQ(timeline.devices.at(0), "A GPU");
  EXPECT_THAT(timeline.copies, SizeIs(10));
  EXPECT_EQ(timeline.copies[0].source, MemoryKind::pageable);
  EXPECT_EQ(timeline.copies[0].direction, CopyDirection::h2d);
  EXPECT_THAT(timeline.work, SizeIs(10));
  EXPECT_THAT(timeline.calls, SizeIs(20));
  EXPECT_EQ(timeline.events, 40);
  EXPECT_THAT(timeline.notes, IsEmpty());
  EXPECT_FALSE(timeline.is_compiled);
  // The first frame that is not of an installed package.
  const Diagnosis diagnosis = diagnose_timeline(timeline);
  ASSERT_THAT(diagnosis.findings, SizeIs(1));
  EXPECT_EQ(diagnosis.findings[0].places[0].function, "train.py(12): main");
}

/// A thread is looked at, and seen in a stack.
void look(Bytes& bytes, std::int64_t time, std::uint32_t thread, std::uint64_t place = 1) {
  Record record{};
  record.type = RecordType::look;
  record.begin = record.end = 5'000'000'000 + time;
  record.stream = thread;
  record.place = place;
  bytes.add(record);
}

/// The stacks of calls through these stacks, in their order.
std::vector<std::vector<std::string>> stacks_of(Bytes& bytes, std::size_t stacks) {
  for (std::size_t i = 0; i < stacks; ++i)
    bytes.step(5'000'000'000 + static_cast<std::int64_t>(i) * 1'000'000, i + 1);
  const Timeline timeline = parse(bytes.bytes()).timeline;
  std::vector<std::vector<std::string>> known;
  for (const TimelineHostSpan& span : timeline.host) known.push_back(stack_of(timeline, span.name));
  return known;
}

/// The names of the places of these calls.
std::vector<std::string> places_of(Bytes& bytes, std::size_t stacks) {
  std::vector<std::string> places;
  for (const std::vector<std::string>& stack : stacks_of(bytes, stacks)) places.push_back(stack.front());
  return places;
}

/// Frames 0 to 5: of PyTorch, of an installed trainer, its main function, Python's, and two of the user.
Bytes frames_of_a_trainer() {
  const std::string packages = "/venv/lib/python3.12/site-packages/";
  Bytes bytes(100);
  bytes.frame(30, packages + "torch/_tensor.py", "to");
  bytes.frame(88, packages + "trainer/loop.py", "step");
  bytes.frame(7, packages + "trainer/__main__.py", "<module>");
  bytes.frame(88, "<frozen runpy>", "_run_code");
  bytes.frame(5, "main.py", "<module>");
  bytes.frame(9, "main.py", "log");
  return bytes;
}

TEST(Recordings, NameTheInnermostFrameOfAnInstalledProgram) {
  Bytes bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 0, 1, 2, 3);
  bytes.numbers(TextType::stack, 0, 2, 3);
  bytes.numbers(TextType::stack, 0, 3);
  EXPECT_THAT(places_of(bytes, 3),
              ElementsAre("trainer/loop.py(88): step", "trainer/__main__.py(7): <module>"));
}

TEST(Recordings, NameTheTrainersFrameIfOneLineOfTheProgramMakesAllCalls) {
  Bytes bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 0, 1, 4);
  bytes.numbers(TextType::stack, 0, 4, 1);
  EXPECT_THAT(places_of(bytes, 2),
              ElementsAre("main.py(5): <module>, in trainer/loop.py(88): step", "main.py(5): <module>"));
  bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 0, 1, 4);
  bytes.numbers(TextType::stack, 0, 5);
  EXPECT_THAT(places_of(bytes, 2), ElementsAre("main.py(5): <module>", "main.py(9): log"));
  bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 0, 1, 4);
  bytes.numbers(TextType::stack, 5);
  look(bytes, 500'000, 5, 2);
  look(bytes, 600'000, 5, 1);
  EXPECT_THAT(places_of(bytes, 1), ElementsAre("main.py(5): <module>, in trainer/loop.py(88): step"))
      << "the other line makes no call";
}

TEST(Recordings, TellTheProgramsFramesThatMakeACall) {
  Bytes bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 0, 5, 1, 4);
  bytes.numbers(TextType::stack, 0, 5);
  bytes.numbers(TextType::stack, 0, 1, 2);
  EXPECT_THAT(stacks_of(bytes, 3),
              ElementsAre(ElementsAre("main.py(9): log", "main.py(5): <module>"),
                          ElementsAre("main.py(9): log"), ElementsAre("trainer/loop.py(88): step")));
  bytes = frames_of_a_trainer();
  bytes.numbers(TextType::stack, 1, 5, 4);
  EXPECT_THAT(stacks_of(bytes, 1), ElementsAre(ElementsAre("main.py(9): log, in trainer/loop.py(88): step",
                                                           "main.py(5): <module>")));
}

TEST(Recordings, AreReadQuicklyIfALongNameIsInManyStacks) {
  Bytes bytes(100);
  bytes.frame(9, "main.py", std::string(std::size_t{1} << 20, 'x'));
  std::string deep;
  for (std::size_t i = 0; i < recording::kMostFrames; ++i) deep += Bytes::number(0);
  for (int i = 0; i < 5'000; ++i) bytes.text(TextType::stack, deep);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<std::vector<std::string>> stacks = stacks_of(bytes, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  ASSERT_THAT(stacks, SizeIs(1));
  EXPECT_THAT(stacks[0], SizeIs(kMostStackFrames));
}

TEST(Recordings, TellWhatWasLeftOut) {
  Bytes bytes = ten_steps();
  const auto recorded = [&bytes](std::uint32_t left_out) {
    bytes.header().left_out = left_out;
    const Timeline timeline = parse(bytes.bytes()).timeline;
    return std::vector<bool>{timeline.has_kernels, timeline.has_launches, timeline.has_calls};
  };
  EXPECT_THAT(recorded(0), ElementsAre(true, true, true));
  EXPECT_THAT(recorded(recording::kWithoutKernels), ElementsAre(false, true, true));
  EXPECT_THAT(recorded(recording::kWithoutLaunches), ElementsAre(true, false, true));
  EXPECT_THAT(recorded(recording::kWithoutCalls), ElementsAre(true, true, false));
}

TEST(Recordings, TellWhatCuptiRefused) {
  Bytes bytes = ten_steps();
  const auto refused = [&bytes](std::uint32_t left_out, std::uint32_t bits) {
    bytes.header().left_out = left_out;
    bytes.header().refused = bits;
    const Timeline timeline = parse(bytes.bytes()).timeline;
    EXPECT_EQ(timeline.has_copies, (left_out & recording::kWithoutCopies) == 0);
    const RefusedRecords& records = timeline.refused;
    return std::vector<bool>{records.kernels, records.copies, records.launches, records.calls};
  };
  constexpr std::uint32_t kAll = recording::kWithoutKernels | recording::kWithoutCopies |
                                 recording::kWithoutLaunches | recording::kWithoutCalls;
  EXPECT_THAT(refused(kAll, 0), ElementsAre(false, false, false, false));
  EXPECT_THAT(refused(kAll, recording::kWithoutKernels), ElementsAre(true, false, false, false));
  EXPECT_THAT(refused(kAll, recording::kWithoutCopies), ElementsAre(false, true, false, false));
  EXPECT_THAT(refused(kAll, recording::kWithoutLaunches), ElementsAre(false, false, true, false));
  EXPECT_THAT(refused(kAll, recording::kWithoutCalls), ElementsAre(false, false, false, true));
  EXPECT_THAT(refused(0, kAll), ElementsAre(false, false, false, false)) << "nothing is missing";
}

TEST(Recordings, LackCallsIfSomeThatCopyWereRefusedAndACopyHasNone) {
  Bytes bytes = ten_steps();
  const auto parsed = [&bytes](std::uint32_t left_out) {
    bytes.header().left_out = bytes.header().refused = left_out;
    return parse(bytes.bytes()).timeline;
  };
  EXPECT_TRUE(parsed(recording::kWithoutSomeCopyCalls).has_calls) << "each copy has its call";
  bytes.ring()[0].correlation = 12345;  // the call of the first copy
  EXPECT_TRUE(parsed(0).has_calls);
  const Timeline timeline = parsed(recording::kWithoutSomeCopyCalls);
  EXPECT_FALSE(timeline.has_calls);
  EXPECT_TRUE(timeline.refused.calls);
  EXPECT_THAT(timeline.notes, Contains(HasSubstr("some calls that copy. Copies without a call: 1.")));
  ASSERT_EQ(bytes.ring()[1].type, RecordType::copy);
  bytes.ring()[1].correlation = 0;  // between devices
  EXPECT_TRUE(parsed(recording::kWithoutSomeCopyCalls).has_calls);
  bytes = ten_steps(39);
  EXPECT_TRUE(parsed(recording::kWithoutSomeCopyCalls).has_calls) << "the first call is written over";
}

TEST(Recordings, TellTheContentsOfCopiesFromTheirCalls) {
  Bytes bytes = ten_steps();
  bytes.numbers(TextType::device_node, 0, 1);  // of earlier recorders
  bytes.numbers(TextType::only_node, 0);
  bytes.ring()[4].extra = 3 | 2 << 8;
  bytes.ring()[0].contents = 55;  // the call of the first copy
  bytes.ring()[8].contents = 66;  // that of the third
  const Timeline timeline = parse(bytes.bytes()).timeline;
  std::vector<std::uint64_t> contents;
  for (const TimelineCopy& copy : timeline.copies) contents.push_back(copy.contents);
  EXPECT_THAT(contents, ElementsAre(55, 0, 66, 0, 0, 0, 0, 0, 0, 0));
}

void stream(Bytes& bytes, std::uint32_t context, std::uint32_t number, std::uint32_t kind) {
  bytes.numbers(TextType::stream, context, number, kind);
}

TEST(Recordings, TellTheKindsOfStreams) {
  Bytes bytes = ten_steps();
  EXPECT_THAT(parse(bytes.bytes()).timeline.stream_kinds, IsEmpty()) << "as of all earlier recorders";
  stream(bytes, 1, 7, 3);  // before its context
  bytes.numbers(TextType::context, 1, 0);
  bytes.numbers(TextType::context, 2, 4);
  bytes.numbers(TextType::context, 3, 0xFFFF);
  bytes.numbers(TextType::context, 9);
  stream(bytes, 1, 13, 1);
  stream(bytes, 2, 13, 2);
  stream(bytes, 1, 14, 0);
  stream(bytes, 3, 15, 1);
  stream(bytes, 9, 16, 1);
  bytes.numbers(TextType::stream, 1, 17);
  bytes.text(TextType::note, "x");
  using Kinds = std::map<std::pair<std::uint16_t, std::uint32_t>, StreamKind>;
  EXPECT_EQ(parse(bytes.bytes()).timeline.stream_kinds, (Kinds{{{0, 7}, StreamKind::default_stream},
                                                               {{0, 13}, StreamKind::blocking},
                                                               {{4, 13}, StreamKind::non_blocking}}));
}

TEST(Recordings, TellDefaultStreamsByTheirContexts) {
  Bytes bytes = ten_steps();
  const auto context = [&bytes](std::uint32_t number, std::uint32_t device, std::uint32_t default_stream) {
    bytes.numbers(TextType::context, number, device, default_stream);
  };
  context(1, 0, 7);
  context(2, 4, 9);
  context(3, 0xFFFF, 11);
  context(4, 0, 13);
  stream(bytes, 1, 7, 3);
  stream(bytes, 1, 14, 1);
  stream(bytes, 1, 13, 1);
  using Kinds = std::map<std::pair<std::uint16_t, std::uint32_t>, StreamKind>;
  EXPECT_EQ(parse(bytes.bytes()).timeline.stream_kinds, (Kinds{{{0, 7}, StreamKind::default_stream},
                                                               {{0, 14}, StreamKind::blocking},
                                                               {{4, 9}, StreamKind::default_stream}}))
      << "two contexts have other streams of the number 13";
}

TEST(Recordings, TellNoKindIfTwoStreamsHaveOneNumber) {
  Bytes bytes = ten_steps();
  bytes.numbers(TextType::context, 1, 0);
  bytes.numbers(TextType::context, 2, 0);
  for (const std::uint32_t context : {1, 2}) stream(bytes, context, 7, 3);
  EXPECT_THAT(parse(bytes.bytes()).timeline.stream_kinds, SizeIs(1));
  stream(bytes, 2, 7, 2);
  stream(bytes, 2, 7, 3);
  EXPECT_THAT(parse(bytes.bytes()).timeline.stream_kinds, IsEmpty());
}

TEST(Recordings, HaveNoPlacesOfCompiledCode) {
  Bytes earlier(100);
  for (std::uint64_t address = 1; address <= 2; ++address)
    earlier.text(TextType::code,
                 std::string(reinterpret_cast<const char*>(&address), sizeof address) + "/me");
  earlier.numbers(TextType::stack, 0, 1);
  Bytes bytes(100);
  bytes.header().left_out = recording::kWithoutPython;
  for (Bytes* const recorded : {&earlier, &bytes}) {
    recorded->step(5'000'000'000);
    const Timeline timeline = parse(recorded->bytes()).timeline;
    EXPECT_TRUE(timeline.is_compiled);
    EXPECT_FALSE(timeline.has_frames);
    EXPECT_THAT(timeline.calls, SizeIs(2));
    EXPECT_THAT(timeline.host, IsEmpty());
    EXPECT_THAT(timeline.notes, IsEmpty());
  }
}

TEST(Recordings, NameTheLinesOfPythonAroundCompiledCode) {
  Bytes bytes(100);
  bytes.text(TextType::code, std::string(8, 1) + "/home/me/library.so");
  bytes.frame(12, "train.py", "main");
  bytes.numbers(TextType::stack, 0, 1);
  EXPECT_THAT(places_of(bytes, 1), ElementsAre("train.py(12): main"));
  EXPECT_FALSE(parse(bytes.bytes()).timeline.is_compiled);
}

TEST(Recordings, KeepTheLastRecordsOfARing) {
  const Recording recording = parse(ten_steps(12).bytes());
  EXPECT_THAT(recording.timeline.copies, SizeIs(3));
  EXPECT_THAT(recording.timeline.notes, Contains("The recording keeps the last 12 of 40 records, so the "
                                                 "report covers only the last 2.90 ms."));
}

TEST(Recordings, LeaveOutARecordThatWasBeingWritten) {
  Bytes bytes = ten_steps(12);
  bytes.ring()[0].sequence = 0;
  bytes.ring()[1].sequence -= 12;  // that of the round before
  const Recording recording = parse(bytes.bytes());
  EXPECT_EQ(recording.timeline.events, 10);
  EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("2 records are missing")));
}

TEST(Recordings, LeaveOutWhatNoRecorderWrites) {
  Bytes bytes = ten_steps();
  Record record = bytes.ring()[0];
  record.begin = record.end + 1;
  bytes.add(record);
  record = bytes.ring()[0];
  record.detail = 200;
  bytes.add(record);
  record = bytes.ring()[1];
  record.device = 60000;
  bytes.add(record);
  const Recording recording = parse(bytes.bytes());
  EXPECT_EQ(recording.timeline.events, 40);
  EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("3 records are missing")));
}

TEST(Recordings, SayIfTheProgramEndedBeforeTheyDid) {
  Bytes bytes = ten_steps();
  bytes.header().state = recording::State::running;
  EXPECT_THAT(parse(bytes.bytes()).timeline.notes, Contains(HasSubstr("without its exit handlers")));
}

TEST(Recordings, OfAnotherKindAreRefused) {
  Bytes bytes = ten_steps();
  bytes.header().version = 99;
  EXPECT_THROW((void)parse(bytes.bytes()), Error);
  bytes = ten_steps();
  bytes.header().magic[0] = 'x';
  EXPECT_THROW((void)parse(bytes.bytes()), Error);
  bytes = ten_steps();
  bytes.header().capacity = std::uint64_t{1} << 60;
  EXPECT_THROW((void)parse(bytes.bytes()), Error);
}

TEST(Recordings, CutAnywhereGiveWhatIsComplete) {
  const std::vector<std::byte> whole = ten_steps().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    if (size < sizeof(Header)) {
      EXPECT_THROW((void)parse(cut), Error);
      continue;
    }
    const Recording recording = parse(cut);
    EXPECT_LT(recording.timeline.events, 40) << size;
    EXPECT_THAT(recording.timeline.notes, Contains(HasSubstr("cut short"))) << size;
  }
}

TEST(Recordings, DamagedAnywhereGiveAnAccountThatAddsUp) {
  const std::vector<std::byte> whole = ten_steps().bytes();
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> damaged = whole;
    for (int j = 0; j < 8; ++j) {
      const bool in_header = random() % 4 == 0;
      const std::size_t at =
          in_header ? random() % sizeof(Header)
                    : recording::kTextOffset + random() % (whole.size() - recording::kTextOffset);
      damaged[at] = static_cast<std::byte>(random());
    }
    try {
      for (const DeviceAccount& account : diagnose_timeline(parse(damaged).timeline).accounts) {
        TraceTime sum = 0;
        for (const TraceTime part : account.parts) sum += part;
        EXPECT_EQ(sum, account.total());
      }
    } catch (const Error&) {
    }
  }
}

TEST(RecordingCorpus, OpensOrIsRefusedAsItsNameSays) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(PENSTOCK_CORPUS) / "recording")) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    ++files;
    if (name.starts_with("ok-")) {
      EXPECT_NO_THROW((void)diagnose_timeline(read_recording(entry.path()).timeline));
    } else {
      EXPECT_THROW((void)read_recording(entry.path()), Error);
    }
  }
  EXPECT_GE(files, 15U);
}

TEST(RecordingCorpus, SumsOfEarlierRecordersAreSkipped) {
  const fs::path folder = fs::path(PENSTOCK_CORPUS) / "recording";
  const Timeline with = read_recording(folder / "ok-totals").timeline;
  const Timeline without = read_recording(folder / "ok-steps").timeline;
  EXPECT_EQ(with.events, without.events);
  EXPECT_EQ(with.names, without.names);
  EXPECT_EQ(with.notes, without.notes);
}

Record wait_at(std::int64_t time) {
  Record record{};
  record.type = RecordType::wait;
  record.begin = time - 500'000;
  record.end = time + 500'000;
  record.stream = 5;
  record.place = 1;
  return record;
}

std::vector<TimeSpan> waits_in(Bytes& bytes) {
  std::vector<TimeSpan> waits;
  for (const TimelineHostSpan& span : parse(bytes.bytes()).timeline.host) {
    if (span.kind == HostSpanKind::loader_wait) waits.push_back(span.time);
  }
  return waits;
}

TEST(Recordings, WaitsEndAtTheNextCall) {
  Bytes bytes = ten_steps(1000);
  // Looks at 10.1 to 14.1 ms, after the last call; the next one begins at 14.3 ms.
  for (int i = 0; i < 5; ++i) bytes.add(wait_at(5'010'100'000 + i * 1'000'000));
  bytes.step(5'014'300'000);
  EXPECT_THAT(waits_in(bytes), ElementsAre(TimeSpan{9'600'000, 14'300'000}));
}

/// A step ends at 9.11 ms and the next one begins at 14.3 ms. In between, threads were looked at.
Bytes looked_at() {
  Bytes bytes = ten_steps(1000);
  bytes.numbers(TextType::watched, 5);
  bytes.step(5'014'300'000);
  return bytes;
}

TEST(Recordings, WaitsGoOnUntilTheThreadIsSeenElsewhere) {
  Bytes bytes = looked_at();
  bytes.add(wait_at(5'012'000'000));
  const std::vector<TimeSpan> waits = waits_in(bytes);
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].begin, 9'215'000) << "from the last call on";
  EXPECT_EQ(waits[0].end, 14'300'000) << "to the next call";
  look(bytes, 10'500'000, 5);
  EXPECT_THAT(waits_in(bytes), ElementsAre(TimeSpan{11'500'000, 14'300'000}));
  look(bytes, 13'500'000, 5);
  EXPECT_THAT(waits_in(bytes), ElementsAre(TimeSpan{11'500'000, 12'500'000}));
  Bytes other = looked_at();
  other.add(wait_at(5'012'000'000));
  look(other, 13'500'000, 6);
  EXPECT_EQ(waits_in(other).at(0).end, 14'300'000) << "another thread was seen";
}

TEST(Recordings, WaitsGoOnForAtMostFiftyMillisecondsUnseen) {
  Bytes bytes = ten_steps(1000);
  bytes.numbers(TextType::watched, 5);
  bytes.add(wait_at(5'070'000'000));
  bytes.step(5'200'000'000);
  EXPECT_THAT(waits_in(bytes), ElementsAre(TimeSpan{19'500'000, 120'500'000}));
}

TEST(Recordings, WaitsOfCompiledLoadersAreAsLongAsTheySay) {
  Bytes bytes = looked_at();
  Record wait = wait_at(5'012'000'000);
  wait.detail = recording::kCompiledLoader;
  bytes.add(wait);
  EXPECT_THAT(waits_in(bytes), ElementsAre(TimeSpan{11'500'000, 12'500'000}));
}

/// In between, the thread waited for one loader, and then for another.
Bytes waiting_for_two_loaders() {
  Bytes bytes = looked_at();
  Record other = wait_at(5'013'000'000);
  other.detail = 1;
  bytes.add(wait_at(5'011'000'000));
  bytes.add(other);
  return bytes;
}

TEST(Recordings, WaitsForTwoLoadersDoNotOverlap) {
  Bytes bytes = waiting_for_two_loaders();
  const std::vector<TimeSpan> waits = waits_in(bytes);
  ASSERT_THAT(waits, SizeIs(2));
  EXPECT_EQ(waits[0].end, 12'500'000);
  EXPECT_EQ(waits[1].begin, 12'500'000);
}

TEST(Recordings, WaitsAndTheirLinesNestBesideOtherWaitsAndCalls) {
  const Timeline timeline = parse(waiting_for_two_loaders().bytes()).timeline;
  std::vector<TimelineHostSpan> spans;
  std::ranges::copy_if(timeline.host, std::back_inserter(spans),
                       [](const TimelineHostSpan& span) { return span.time.begin > 9'210'000; });
  ASSERT_THAT(spans, SizeIs(5)) << "each with its line, and the last call's line";
  for (const std::size_t i : {0, 2}) {
    EXPECT_EQ(spans[i].kind, HostSpanKind::frame) << "around the wait";
    EXPECT_EQ(spans[i].time, spans[i + 1].time);
    EXPECT_EQ(spans[i + 1].kind, HostSpanKind::loader_wait);
  }
}

TEST(Recordings, TellTheLoaderThatWasWaitedFor) {
  Bytes bytes = ten_steps();
  for (std::uint8_t loader = 0; loader <= std::size(recording::kLoaders); ++loader) {
    Record wait = wait_at(5'010'100'000 + loader * 1'000'000);
    wait.detail = loader;
    bytes.add(wait);
  }
  const Timeline timeline = parse(bytes.bytes()).timeline;
  std::vector<std::string> names;
  for (const TimelineHostSpan& span : timeline.host) {
    if (span.kind == HostSpanKind::loader_wait) names.push_back(timeline.names[span.name]);
  }
  EXPECT_THAT(names, ElementsAre("DataLoader.__next__", "penstock.Loader.__next__", "penstock.feed.__next__",
                                 "penstock.feed.__next__", "penstock::Loader::next"));
  EXPECT_EQ(timeline.notes.size(), 1U) << "a loader of a later version is left out";
}

TEST(Recordings, TellWhereThreadsWereSeen) {
  Bytes bytes = ten_steps();
  look(bytes, 9'000'000, 5);
  look(bytes, 950'000, 5);
  look(bytes, 960'000, 6);
  EXPECT_FALSE(parse(bytes.bytes()).timeline.has_looks) << "as of earlier recorders";
  bytes.numbers(TextType::watched, 6);
  EXPECT_FALSE(parse(bytes.bytes()).timeline.has_looks) << "this one launches nothing";
  bytes.numbers(TextType::watched, 5);
  bytes.text(TextType::watched, "");
  const Timeline timeline = parse(bytes.bytes()).timeline;
  EXPECT_TRUE(timeline.has_looks);
  ASSERT_THAT(timeline.looks, SizeIs(3));
  EXPECT_EQ(timeline.looks[0].time, 950'000);
  EXPECT_EQ(timeline.names[timeline.looks[0].name], "train.py(12): main");
  EXPECT_EQ(timeline.looks[1].time, 9'000'000) << "by thread, then by time";
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(Recordings, PairTheEndsOfRanges) {
  Bytes bytes = ten_steps();
  const auto add = [&bytes](std::int64_t time, std::uint32_t number, std::uint8_t detail) {
    Record record{};
    record.type = RecordType::range;
    record.begin = record.end = 5'000'000'000 + time;
    record.correlation = number;
    record.detail = detail;
    record.stream = 5;
    record.contents = detail == 0 ? 77 : 0;
    bytes.add(record);
  };
  add(100, 2, 1);  // an end may come before its beginning in the ring
  add(50, 2, 0);
  add(60, 3, 0);  // never ends
  add(70, 4, 1);  // began before the recording
  add(90, 5, 0);
  add(80, 5, 1);
  const Timeline timeline = parse(bytes.bytes()).timeline;
  ASSERT_THAT(timeline.ranges, SizeIs(1));
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{50, 100}));
  EXPECT_EQ(timeline.ranges[0].label, 77U);
  EXPECT_THAT(timeline.notes, IsEmpty());
  add(95, 6, 2);
  EXPECT_EQ(parse(bytes.bytes()).timeline.notes.size(), 1U) << "of a later version";
}

/// A thread that launches something, and ranges of one name: each of `length` every 100.
Timeline ranges(std::size_t count, TraceTime length, std::uint64_t label = 1) {
  Timeline timeline;
  timeline.calls.push_back({{0, 1}, 1, 0, CallKind::launch});
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<TraceTime>(100 * i);
    timeline.ranges.push_back({{begin, begin + length}, label, 0});
  }
  return timeline;
}

TEST(Steps, AreTheRangesThatTheProgramMarks) {
  EXPECT_THAT(find_steps(ranges(5, 60)), ElementsAre(TimeSpan{0, 100}, TimeSpan{100, 200}, TimeSpan{200, 300},
                                                     TimeSpan{300, 400}, TimeSpan{400, 460}));
  Timeline backwards = ranges(5, 60);
  std::ranges::reverse(backwards.ranges);
  EXPECT_EQ(find_steps(backwards), find_steps(ranges(5, 60)));
  EXPECT_THAT(find_steps(ranges(4, 60)), IsEmpty()) << "too few";
  EXPECT_THAT(find_steps(ranges(13, 48)), SizeIs(13)) << "half of the time";
  EXPECT_THAT(find_steps(ranges(9, 45)), IsEmpty()) << "less than half of the time";
  EXPECT_THAT(find_steps(ranges(9, 100)), SizeIs(9));
  EXPECT_THAT(find_steps(ranges(9, 101)), IsEmpty()) << "they overlap";
  Timeline elsewhere = ranges(9, 60);
  elsewhere.calls[0].thread = 3;
  EXPECT_THAT(find_steps(elsewhere), IsEmpty()) << "of a thread that launches nothing";
  // A forward pass within each step, and an epoch around all.
  for (const std::uint64_t inner : {0, 2}) {
    Timeline nested = ranges(6, 90);
    for (const TimelineRange& range : ranges(6, 60, inner).ranges) nested.ranges.push_back(range);
    nested.ranges.push_back({{0, 600}, 3, 0});
    EXPECT_EQ(find_steps(nested).back(), (TimeSpan{500, 590}));
  }
  const auto within_epochs = [](TraceTime length) {
    Timeline timeline = ranges(60, length);
    for (TraceTime epoch = 0; epoch < 6; ++epoch)
      timeline.ranges.push_back({{1000 * epoch, 1000 * epoch + 995}, 2, 0});
    return find_steps(timeline);
  };
  EXPECT_THAT(within_epochs(90), SizeIs(60)) << "nearly as much as the epochs";
  EXPECT_THAT(within_epochs(89), SizeIs(6));
  EXPECT_THAT(within_epochs(101), SizeIs(6)) << "they overlap";
  Timeline two_names = ranges(3, 60);
  for (TimelineRange range : ranges(3, 60, 2).ranges) {
    range.time = {range.time.begin + 300, range.time.end + 300};
    two_names.ranges.push_back(range);
  }
  EXPECT_THAT(find_steps(two_names), IsEmpty());
}

TEST(Steps, MayDifferInTheSizesOfTheirCopies) {
  Timeline timeline;
  for (int i = 0; i < 20; ++i) {
    TimelineCopy copy;
    copy.time = {i * 1000, i * 1000 + 10};
    copy.bytes = static_cast<std::uint64_t>(i);
    timeline.copies.push_back(copy);
    timeline.work.push_back({{i * 1000 + 20, i * 1000 + 500}, 7, 0, 4});
  }
  EXPECT_THAT(find_steps(timeline), SizeIs(Ge(18U)));
}

TEST(RecordingFiles, AreFilledByManyThreadsAtOnce) {
  const test::TempDirectory folder;
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 200'000));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 40'000; ++j) {
        Record record{};
        record.type = RecordType::work;
        record.begin = j;
        record.end = j + 1;
        file.add(record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Recording recording = read_recordings(folder.path()).at(0);
  EXPECT_EQ(recording.timeline.events, 160'000);
  EXPECT_EQ(recording.process, ::getpid());
}

TEST(RecordingFiles, RefuseTextThatDoesNotFit) {
  const test::TempDirectory folder;
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 10));
  const std::string sentence(1000, 'x');
  int notes = 0;
  while (file.add_text(TextType::note, nullptr, 0, sentence)) ASSERT_LT(++notes, 3000);
  EXPECT_EQ(notes, static_cast<int>(recording::kTextBytes / 1008));
  Record record{};
  record.type = RecordType::work;
  file.add(record);
  EXPECT_EQ(read_recordings(folder.path()).at(0).timeline.events, 1);
}

TEST(RecordingFiles, HaveNamesOfTheirOwn) {
  const test::TempDirectory folder;
  static RecordingFile first;
  static RecordingFile second;
  ASSERT_TRUE(first.open(folder.path().c_str(), 10));
  ASSERT_TRUE(second.open(folder.path().c_str(), 10));
  EXPECT_THAT(read_recordings(folder.path()), SizeIs(2));
  static RecordingFile nowhere;
  EXPECT_FALSE(nowhere.open("/nowhere", 10));
}

/// In a child process: ends it at the first of these calls.
void end_at(std::initializer_list<std::uint32_t> calls) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const std::uint32_t call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) ::_exit(77);
}

/// Opens a recording in a child process that ends at one of these calls. False: no call can be caught here.
bool open_until(const fs::path& folder, std::initializer_list<std::uint32_t> calls) {
  const pid_t child = ::fork();
  if (child == 0) {
    end_at(calls);
    static RecordingFile file;
    ::_exit(file.open(folder.c_str(), 10) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return false;
  EXPECT_TRUE(WIFSIGNALED(status));
  return true;
}

TEST(RecordingFiles, HaveTheirNameOnceTheirHeaderIsComplete) {
  const test::TempDirectory folder;
  if (!open_until(folder.path(), {SYS_fallocate})) GTEST_SKIP() << "this process may not filter its calls";
  std::vector<std::string> refused;
  EXPECT_THAT(read_recordings(folder.path(), &refused), IsEmpty());
  EXPECT_THAT(refused,
              ElementsAre(HasSubstr(".penstock.unfinished: its process ended before it was recorded")));
  const test::TempDirectory other;
#ifdef SYS_rename
  ASSERT_TRUE(open_until(other.path(), {SYS_rename, SYS_renameat, SYS_renameat2}));
#else
  ASSERT_TRUE(open_until(other.path(), {SYS_renameat, SYS_renameat2}));
#endif
  const fs::path file = fs::directory_iterator(other.path())->path();
  EXPECT_THAT(file.string(), EndsWith(".penstock.unfinished"));
  EXPECT_EQ(read_recording(file).timeline.events, 0U) << "all but the name is there";
}

TEST(RecordingFiles, OfAnotherProcessWithTheNumberStay) {
  const test::TempDirectory folder;
  const std::string number = std::to_string(::getpid());
  std::ofstream(folder.path() / (number + ".penstock")) << "first";
  std::ofstream(folder.path() / (number + "-1.penstock.unfinished")) << "second";
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 10));
  EXPECT_EQ(read_recording(folder.path() / (number + "-2.penstock")).process, ::getpid());
  EXPECT_EQ(fs::file_size(folder.path() / (number + ".penstock")), 5U);
  EXPECT_EQ(fs::file_size(folder.path() / (number + "-1.penstock.unfinished")), 6U);
  EXPECT_FALSE(fs::exists(folder.path() / (number + ".penstock.unfinished")));
}

TEST(RecordingFiles, ThatCannotBeReadAreNamedBesideTheOthers) {
  const test::TempDirectory folder;
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 10));
  std::ofstream(folder.path() / "1.penstock") << "no header";
  EXPECT_THROW(static_cast<void>(read_recordings(folder.path())), Error);
  std::vector<std::string> refused;
  EXPECT_THAT(read_recordings(folder.path(), &refused), SizeIs(1));
  EXPECT_THAT(refused, ElementsAre(HasSubstr("1.penstock: it is not a recording of penstock doctor.")));
  const test::TempDirectory empty;
  EXPECT_THROW(static_cast<void>(read_recordings(empty.path(), &refused)), Error);
}

}  // namespace
}  // namespace penstock
