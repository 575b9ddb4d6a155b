#include "doctor/read/recording.hpp"

#include "doctor/read/cupti_kinds.hpp"
#include "doctor/read/python_files.hpp"
#include "doctor/read/recording_format.hpp"
#include "doctor/read/seen_waits.hpp"
#include "doctor/read/trace_frames.hpp"
#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/frame_names.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

using recording::Header;
using recording::Record;
using recording::RecordType;
using recording::TextEntry;
using recording::TextType;

constexpr std::uint16_t kMostRecordedDevices = 1024;
constexpr std::uint64_t kMostTextBytes = std::uint64_t{64} << 20;
constexpr TraceTime kLongest = TraceTime{1} << 53;  // a hundred days

class RecordingParser {
 public:
  RecordingParser(BytesAt bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Recording parse() {
    read_header();
    read_text();
    name_stacks();
    read_records();
    keep_contents();
    look_for_refused_copies();
    keep_stream_kinds();
    keep_ranges();
    Timeline& timeline = recording_.timeline;
    timeline.source = TimelineSource::recorder;
    timeline.is_compiled =
        (header_.left_out & recording::kWithoutPython) != 0 || (has_code_ && !timeline.has_frames);
    sort_timeline(timeline);
    keep_watched();
    keep_waits();
    sort_timeline(timeline);
    timeline.steps = find_steps(timeline);
    note_losses();
    return std::move(recording_);
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Frame {
    bool of_user = false;
    std::string name;
    std::string name_in_package;        ///< empty: it is in none that a place may name
    std::uint32_t name_number = kNone;  ///< of `name`, once it is asked for
  };

  /// Numbers of frames, the innermost first.
  struct Stack {
    std::vector<std::uint32_t> of_user;
    std::uint32_t in_package = kNone;  ///< within the first of the user's
  };

  [[noreturn]] void refuse(std::string_view why) const { throw Error(fmt::format("{}: {}.", file_, why)); }
  void note(std::string text) { recording_.timeline.notes.push_back(std::move(text)); }

  void read_header() {
    const std::size_t got = bytes_(0, std::as_writable_bytes(std::span(&header_, 1)));
    if (got < sizeof header_ || std::memcmp(header_.magic, recording::kMagic, sizeof header_.magic) != 0)
      refuse("it is not a recording of penstock doctor");
    if (header_.version != recording::kVersion || header_.record_bytes != sizeof(Record))
      refuse(fmt::format("it is a recording of version {}, and this penstock reads version {}",
                         header_.version, recording::kVersion));
    // A ring within the header makes the difference huge.
    if (header_.capacity > recording::kMostRecords ||
        header_.ring_offset - recording::kTextOffset > kMostTextBytes)
      refuse("its header is damaged");
    recording_.process = header_.process;
    note_left_out();
  }

  void note_left_out() {
    const auto is_left_out = [this](std::uint32_t part) { return (header_.left_out & part) != 0; };
    const auto is_refused = [&](std::uint32_t part) {
      return is_left_out(part) && (header_.refused & part) != 0;
    };
    Timeline& timeline = recording_.timeline;
    timeline.has_kernels = !is_left_out(recording::kWithoutKernels);
    timeline.has_copies = !is_left_out(recording::kWithoutCopies);
    timeline.has_launches = !is_left_out(recording::kWithoutLaunches);
    timeline.has_calls = !is_left_out(recording::kWithoutCalls);
    timeline.refused = {is_refused(recording::kWithoutKernels), is_refused(recording::kWithoutCopies),
                        is_refused(recording::kWithoutLaunches), is_refused(recording::kWithoutCalls)};
  }

  void read_text() {
    const std::uint64_t room = header_.ring_offset - recording::kTextOffset;
    std::vector<std::byte> text(static_cast<std::size_t>(std::min(header_.text_bytes, room)));
    text.resize(bytes_(recording::kTextOffset, text));
    std::size_t at = 0;
    while (text.size() - at >= sizeof(TextEntry)) {
      TextEntry entry{};
      std::memcpy(&entry, text.data() + at, sizeof entry);
      at += sizeof entry;
      if (entry.bytes > text.size() - at) break;
      read_entry(entry.type, std::span(text).subspan(at, entry.bytes));
      at = std::min(text.size(), at + (std::size_t{entry.bytes} + 3) / 4 * 4);
    }
    if (at != header_.text_bytes) note("The recording is cut short: places of some calls are missing.");
  }

  static std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t index) {
    std::uint32_t number = 0;
    std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
    return number;
  }
  static std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void read_entry(TextType type, std::span<const std::byte> bytes) {
    Timeline& timeline = recording_.timeline;
    constexpr std::size_t kNumber = sizeof(std::uint32_t);
    switch (type) {
      case TextType::frame: {
        const bool whole = bytes.size() >= 2 * kNumber && number_at(bytes, 1) <= bytes.size() - 2 * kNumber;
        const std::string_view text = whole ? text_of(bytes.subspan(2 * kNumber)) : std::string_view{};
        const std::string_view name = text.substr(0, whole ? number_at(bytes, 1) : 0);
        const auto in = [&](std::string_view file) {
          return fmt::format("{}({}): {}", file, static_cast<std::int32_t>(number_at(bytes, 0)),
                             text.substr(name.size()));
        };
        const std::string_view path = recording::path_in_package(name);
        timeline.has_frames = true;
        frames_.push_back({recording::is_user_file(name), whole ? in(name) : std::string(),
                           path.empty() ? std::string() : in(path)});
        break;
      }
      case TextType::code:
        has_code_ = true;
        frames_.emplace_back();
        break;
      case TextType::stack: {
        Stack stack;
        for (std::size_t i = 0; i < std::min(bytes.size() / kNumber, recording::kMostFrames); ++i) {
          const std::uint32_t frame = number_at(bytes, i);
          if (frame >= frames_.size()) continue;
          if (frames_[frame].of_user) stack.of_user.push_back(frame);
          if (stack.in_package == kNone && stack.of_user.empty() && !frames_[frame].name_in_package.empty())
            stack.in_package = frame;
        }
        stacks_.push_back(std::move(stack));
        break;
      }
      case TextType::note:
        note(std::string(text_of(bytes)));
        break;
      case TextType::device:
        if (bytes.size() >= kNumber && number_at(bytes, 0) < kMostRecordedDevices)
          timeline.devices[static_cast<std::uint16_t>(number_at(bytes, 0))] = text_of(bytes.subspan(kNumber));
        break;
      case TextType::context:
        if (bytes.size() >= 2 * kNumber && number_at(bytes, 1) < kMostRecordedDevices)
          context_devices_[number_at(bytes, 0)] = static_cast<std::uint16_t>(number_at(bytes, 1));
        if (bytes.size() >= 3 * kNumber)
          streams_.push_back({number_at(bytes, 0), number_at(bytes, 2), StreamKind::default_stream});
        break;
      case TextType::stream:
        if (bytes.size() >= 3 * kNumber)
          streams_.push_back(
              {number_at(bytes, 0), number_at(bytes, 1), cupti_stream_kind(number_at(bytes, 2))});
        break;
      case TextType::device_node:
      case TextType::only_node:
        break;
      case TextType::watched:
        if (bytes.size() >= kNumber) watched_.push_back(number_at(bytes, 0));
        break;
    }
  }

  /// If one line of the program makes all calls, such as that of a trainer, it says little by itself. Stacks
  /// that only looks have are of no calls.
  void name_stacks() {
    std::set<std::uint64_t> looked;
    std::set<std::uint64_t> called;
    for_each_record([&](const Record& record) {
      if (record.type == RecordType::look) looked.insert(record.place);
      if (record.type == RecordType::call || record.type == RecordType::wait) called.insert(record.place);
    });
    std::set<std::string_view> lines;
    for (std::size_t i = 0; i < stacks_.size(); ++i) {
      if (stacks_[i].of_user.empty() || (looked.contains(i + 1) && !called.contains(i + 1))) continue;
      lines.insert(frames_[stacks_[i].of_user[0]].name);
    }
    for (const Stack& stack : stacks_) places_.push_back(place_of(stack, lines.size() == 1));
  }

  /// Calls `visit` with each record that the ring holds whole. Returns how many are missing.
  template <typename Visit>
  std::uint64_t for_each_record(Visit&& visit) {
    const std::uint64_t count = std::min(header_.written, header_.capacity);
    std::uint64_t missing = 0;
    constexpr std::size_t kChunk = 1 << 14;
    std::vector<Record> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, count)));
    for (std::uint64_t slot = 0; slot < count; slot += chunk.size()) {
      const std::uint64_t wanted = std::min<std::uint64_t>(chunk.size(), count - slot);
      const std::size_t got =
          bytes_(header_.ring_offset + slot * sizeof(Record),
                 std::as_writable_bytes(std::span(chunk).first(static_cast<std::size_t>(wanted)))) /
          sizeof(Record);
      for (std::size_t i = 0; i < got; ++i) {
        // The newest record that belongs into the slot.
        const std::uint64_t last = header_.written - 1;
        const std::uint64_t index = last - (last - (slot + i)) % header_.capacity;
        if (chunk[i].sequence == static_cast<std::uint32_t>(index + 1)) {
          visit(chunk[i]);
        } else {
          ++missing;
        }
      }
      if (got < wanted) return missing + count - slot - got;
    }
    return missing;
  }

  void read_records() {
    incomplete_ += for_each_record([this](const Record& record) { ++(keep(record) ? kept_ : incomplete_); });
    recording_.timeline.events = kept_;
  }

  bool keep(const Record& record) {
    const TimeSpan time{record.begin, record.end};
    if (time.begin < 0 || time.end < time.begin) return false;
    if (!origin_) origin_ = time.begin;
    // Every clock has its own beginning; what is left of it is small enough to be added up.
    const TimeSpan own{time.begin - *origin_, time.end - *origin_};
    if (own.begin < -kLongest || own.end > kLongest) return false;
    Timeline& timeline = recording_.timeline;
    switch (record.type) {
      case RecordType::copy: {
        const auto to = cupti_direction(record.detail);
        if (record.device >= kMostRecordedDevices || record.bytes > std::uint64_t{1} << 60) return false;
        if (to) {
          timeline.copies.push_back({own, record.bytes, record.correlation, record.stream, record.device, *to,
                                     cupti_memory_kind(record.extra & 0xFFu)});
        }
        return true;
      }
      case RecordType::work:
        if (record.device >= kMostRecordedDevices) return false;
        timeline.work.push_back({own, record.stream, record.device, record.extra});
        return true;
      case RecordType::call: {
        if (record.detail > static_cast<std::uint8_t>(CallKind::free)) return false;
        const auto thread = thread_number(record.stream);
        if (!thread) return false;
        timeline.calls.push_back({own, record.correlation, *thread, static_cast<CallKind>(record.detail)});
        if (record.contents != 0) contents_[record.correlation] = record.contents;
        if (const std::uint32_t frame = frame_of(record.place); frame != kNone)
          timeline.host.push_back(
              {{own.begin, std::max(own.end, own.begin + 1)}, frame, *thread, HostSpanKind::frame});
        return true;
      }
      case RecordType::range: {
        const auto thread = thread_number(record.stream);
        if (!thread || record.detail > 1) return false;
        (record.detail == 0 ? range_begins_ : range_ends_)
            .push_back({record.correlation, {own, record.contents, *thread}});
        return true;
      }
      case RecordType::wait: {
        if (record.detail >= std::size(recording::kLoaders)) return false;
        const auto thread = thread_number(record.stream);
        if (thread) waits_.push_back({own, frame_of(record.place), *thread, record.detail});
        return thread.has_value();
      }
      case RecordType::look: {
        const auto thread = thread_number(record.stream);
        if (thread) timeline.looks.push_back({own.begin, frame_of(record.place), *thread});
        return thread.has_value();
      }
    }
    return false;
  }

  /// Calls tell the contents of the copies that they made.
  void keep_contents() {
    for (TimelineCopy& copy : recording_.timeline.copies) {
      const auto known = contents_.find(copy.correlation);
      if (known != contents_.end()) copy.contents = known->second;
    }
  }

  /// If CUPTI refused some calls that copy, copies without a call may be theirs.
  void look_for_refused_copies() {
    Timeline& timeline = recording_.timeline;
    if ((header_.left_out & recording::kWithoutSomeCopyCalls) == 0 || !timeline.has_calls) return;
    std::unordered_set<std::uint32_t> made;
    TraceTime from = std::numeric_limits<TraceTime>::max();
    for (const TimelineCall& call : timeline.calls) {
      made.insert(call.correlation);
      from = std::min(from, call.time.begin);
    }
    // Of the oldest copies, the ring has lost the calls.
    if (header_.written <= header_.capacity) from = std::numeric_limits<TraceTime>::min();
    const auto without_call = std::ranges::count_if(timeline.copies, [&](const TimelineCopy& copy) {
      return copy.correlation != 0 && copy.time.begin >= from && !made.contains(copy.correlation);
    });
    if (without_call == 0) return;
    timeline.has_calls = false;
    timeline.refused.calls = true;
    note(fmt::format("CUPTI refused to record some calls that copy. Copies without a call: {}.",
                     without_call));
  }

  /// Contexts have numbers of their own for streams. If two streams of a device have the same number and
  /// other kinds, nobody knows which of them a record means.
  void keep_stream_kinds() {
    auto& kinds = recording_.timeline.stream_kinds;
    std::set<std::pair<std::uint16_t, std::uint32_t>> unclear;
    for (const RecordedStream& stream : streams_) {
      const auto device = context_devices_.find(stream.context);
      if (device == context_devices_.end() || !stream.kind) continue;
      const auto [known, added] = kinds.try_emplace({device->second, stream.number}, *stream.kind);
      if (known->second != *stream.kind) unclear.insert(known->first);
    }
    for (const auto& stream : unclear) kinds.erase(stream);
  }

  /// The ring does not give the records in the order of their times.
  void keep_ranges() {
    std::unordered_map<std::uint32_t, TraceTime> ends;
    for (const auto& [number, end] : range_ends_) ends[number] = end.time.begin;
    for (auto& [number, range] : range_begins_) {
      const auto end = ends.find(number);
      if (end == ends.end() || end->second < range.time.begin) continue;
      range.time.end = end->second;
      recording_.timeline.ranges.push_back(range);
    }
  }

  void keep_waits() {
    Timeline& timeline = recording_.timeline;
    for (const SeenWait& wait : join_waits(std::move(waits_), timeline)) {
      timeline.host.push_back({wait.time, name(std::string(recording::kLoaders[wait.loader].name)),
                               wait.thread, HostSpanKind::loader_wait});
      if (wait.frame != kNone)
        timeline.host.push_back({wait.time, wait.frame, wait.thread, HostSpanKind::frame});
    }
  }

  /// What others do says nothing of why a GPU idles.
  void keep_watched() {
    Timeline& timeline = recording_.timeline;
    const std::vector<bool> launches = threads_that_launch(timeline);
    timeline.has_looks = std::ranges::any_of(watched_, [&](std::uint32_t thread) {
      const auto known = threads_.find(thread);
      return known != threads_.end() && launches[known->second];
    });
  }

  void note_losses() {
    if (header_.written > header_.capacity) {
      const TimeSpan covered = whole_window(recording_.timeline);
      note(fmt::format(
          "The recording keeps the last {} of {} records, so the report covers only the last {}.",
          header_.capacity, header_.written, format_seconds(seconds_of(covered.end - covered.begin))));
    }
    if (header_.dropped > 0) {
      note(fmt::format("CUPTI had no room for {} records, so times are missing.", header_.dropped));
    }
    if (incomplete_ > 0)
      note(fmt::format("The recording is cut short or damaged: {} records are missing.", incomplete_));
    if (header_.without_place > 0) {
      note(fmt::format("Places in the program: {} calls have none, as the recording had no more room.",
                       header_.without_place));
    }
    if (header_.state == recording::State::running && kept_ > 0) {
      note(
          "The program ended without its exit handlers, so up to the last second of the GPU's work is "
          "missing.");
    }
  }

  std::uint32_t frame_of(std::uint64_t place) const {
    return place > 0 && place <= places_.size() ? places_[static_cast<std::size_t>(place - 1)] : kNone;
  }

  /// The name of a stack's place: the program's own innermost frame, with that in a package if
  /// `with_package`.
  std::uint32_t place_of(const Stack& stack, bool with_package) {
    const std::string in_package =
        stack.in_package != kNone ? frames_[stack.in_package].name_in_package : std::string();
    if (stack.of_user.empty()) return in_package.empty() ? kNone : name(in_package);
    Frame& own = frames_[stack.of_user[0]];
    const bool with_both = with_package && !in_package.empty();
    return frame_names_.called_by(with_both ? name(place_in_package(own.name, in_package)) : name_of(own),
                                  caller_of(stack));
  }

  /// Of the program's own innermost frame.
  std::uint32_t caller_of(const Stack& stack) {
    std::uint32_t caller = kNone;
    for (std::size_t i = stack.of_user.size() - 1; i > 0; --i) {
      Frame& frame = frames_[stack.of_user[i]];
      if (!frame.name.empty()) caller = frame_names_.called_by(name_of(frame), caller);
    }
    return caller;
  }

  std::uint32_t name(const std::string& text) {
    const auto [at, added] =
        names_.try_emplace(text, static_cast<std::uint32_t>(recording_.timeline.names.size()));
    if (added) recording_.timeline.names.push_back(text);
    return at->second;
  }

  /// A long name is in many stacks.
  std::uint32_t name_of(Frame& frame) {
    if (frame.name_number == kNone) frame.name_number = name(frame.name);
    return frame.name_number;
  }

  std::optional<std::uint16_t> thread_number(std::uint32_t thread) {
    const auto known = threads_.find(thread);
    if (known != threads_.end()) return known->second;
    if (threads_.size() > std::numeric_limits<std::uint16_t>::max()) return std::nullopt;
    return threads_.try_emplace(thread, static_cast<std::uint16_t>(threads_.size())).first->second;
  }

  struct RecordedStream {
    std::uint32_t context = 0;
    std::uint32_t number = 0;
    std::optional<StreamKind> kind;
  };

  BytesAt bytes_;
  const std::string& file_;
  Header header_{};
  Recording recording_;
  std::vector<Frame> frames_;
  std::vector<Stack> stacks_;          ///< by number
  std::vector<std::uint32_t> places_;  ///< by number of the stack: its name
  std::vector<SeenWait> waits_;
  std::vector<std::uint32_t> watched_;  ///< threads, as the recorder numbers them
  std::vector<std::pair<std::uint32_t, TimelineRange>> range_begins_;  ///< by number
  std::vector<std::pair<std::uint32_t, TimelineRange>> range_ends_;
  std::unordered_map<std::uint32_t, std::uint64_t> contents_;  ///< by correlation
  std::vector<RecordedStream> streams_;
  std::unordered_map<std::uint32_t, std::uint16_t> context_devices_;
  std::unordered_map<std::string, std::uint32_t> names_;
  FrameNames frame_names_{recording_.timeline};
  std::unordered_map<std::uint32_t, std::uint16_t> threads_;
  std::optional<TraceTime> origin_;
  bool has_code_ = false;  ///< frames of compiled code
  std::uint64_t kept_ = 0;
  std::uint64_t incomplete_ = 0;
};

}  // namespace

Recording parse_recording(BytesAt bytes, const std::string& file) {
  return RecordingParser(bytes, file).parse();
}

Recording read_recording(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const auto check = [&](bool is_bad) {
    if (is_bad) throw Error(fmt::format("{} cannot be read: {}.", file.string(), std::strerror(errno)));
  };
  check(!in.is_open());
  const auto bytes = [&](std::uint64_t offset, std::span<std::byte> destination) {
    in.clear();
    in.seekg(static_cast<std::streamoff>(offset));
    in.read(reinterpret_cast<char*>(destination.data()), static_cast<std::streamsize>(destination.size()));
    check(in.bad());
    return static_cast<std::size_t>(in.gcount());
  };
  return parse_recording(bytes, file.string());
}

std::vector<Recording> read_recordings(const std::filesystem::path& folder,
                                       std::vector<std::string>* refused) {
  if (folder.extension() == recording::kSuffix && !std::filesystem::is_directory(folder))
    return {read_recording(folder)};
  std::error_code error;
  std::vector<Recording> recordings;
  std::vector<std::string> others;
  const std::string unfinished = std::string(recording::kSuffix) + recording::kUnfinishedSuffix;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().native().ends_with(unfinished)) {
      others.push_back(
          fmt::format("{}: its process ended before it was recorded, or there was no room for the recording.",
                      entry.path().string()));
    }
    if (entry.path().extension() != recording::kSuffix) continue;
    try {
      recordings.push_back(read_recording(entry.path()));
    } catch (const Error& why) {
      if (refused == nullptr) throw;
      others.emplace_back(why.what());
    }
  }
  if (error) throw Error(fmt::format("{} cannot be read: {}.", folder.string(), error.message()));
  if (recordings.empty() && (refused == nullptr || others.empty())) {
    throw Error(fmt::format(
        "{} holds no recording; penstock doctor --record FOLDER -- COMMAND makes a new folder of them",
        folder.string()));
  }
  std::sort(recordings.begin(), recordings.end(),
            [](const Recording& a, const Recording& b) { return a.process < b.process; });
  std::sort(others.begin(), others.end());
  if (refused != nullptr) *refused = std::move(others);
  return recordings;
}

}  // namespace penstock
