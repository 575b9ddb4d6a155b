#include "doctor/read/torch_trace.hpp"

#include "doctor/read/call_names.hpp"
#include "doctor/read/recording_format.hpp"
#include "doctor/read/trace_copies.hpp"
#include "doctor/read/trace_frames.hpp"
#include "doctor/read/trace_looks.hpp"
#include "doctor/timeline/work_labels.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostNames = std::size_t{1} << 16;
constexpr std::size_t kLongestName = 256;
constexpr std::uint64_t kMostDevices = 1024;
constexpr std::uint64_t kMostCopied = std::uint64_t{1} << 60;
constexpr std::uint64_t kMostRanks = std::uint64_t{1} << 32;
constexpr std::uint64_t kMostCorrelation = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostRanges = std::size_t{1} << 20;
constexpr TraceTime kLongCall = 1'000'000;  // others are the pace of a program
constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kLoader = "enumerate(DataLoader)#";

enum class EventKind : std::uint8_t { other, kernel, memory_set, copy, call, op, frame, annotation };

/// Of an event's category. PyTorch 1.8 and 1.9 have names of their own.
EventKind event_kind(std::string_view category) {
  constexpr std::pair<std::string_view, EventKind> kCategories[] = {
      {"cpu_op", EventKind::op},
      {"python_function", EventKind::frame},
      {"kernel", EventKind::kernel},
      {"cuda_runtime", EventKind::call},
      {"cuda_driver", EventKind::call},
      {"gpu_memcpy", EventKind::copy},
      {"gpu_memset", EventKind::memory_set},
      {"user_annotation", EventKind::annotation},
      {"xpu_runtime", EventKind::call},
      {"Operator", EventKind::op},
      {"Runtime", EventKind::call},
      {"Kernel", EventKind::kernel},
      {"Memcpy", EventKind::copy},
      {"Memset", EventKind::memory_set},
  };
  for (const auto& [name, kind] : kCategories) {
    if (category == name) return kind;
  }
  return EventKind::other;
}

/// Bytes of an element of a type as the profiler writes it; 0 if it is not one of a tensor of numbers.
std::uint8_t element_bytes(std::string_view type) {
  constexpr std::pair<std::string_view, std::uint8_t> kTypes[] = {
      {"unsigned char", 1}, {"signed char", 1}, {"bool", 1},      {"c10::Half", 2},
      {"c10::BFloat16", 2}, {"short", 2},       {"short int", 2}, {"float", 4},
      {"int", 4},           {"double", 8},      {"long", 8},      {"long int", 8},
  };
  for (const auto& [name, bytes] : kTypes) {
    if (type == name) return bytes;
  }
  return 0;
}

/// "/device:GPU:1 (a name)" has 1 behind "/device:GPU:".
std::optional<std::uint64_t> number_behind(std::string_view label, std::string_view beginning) {
  label.remove_prefix(beginning.size());
  return whole_of(label.substr(0, label.find_first_not_of("0123456789")));
}

class TraceParser {
 public:
  TraceParser(TextSource source, const std::string& file) : json_(source, file), file_(file) {}

  Timeline parse() {
    json_.skip_mark();
    json_.is_array() ? read_events() : read_object();
    json_.finish();
    if (timeline_.events == 0) refuse("it has no events; profile some steps of the program");
    if (timeline_.copies.empty() && timeline_.work.empty()) refuse(why_without_work());
    give_sizes_of_calls();
    sort_timeline(timeline_);
    place_frames(timeline_, of_packages_);
    look_at_stacks(timeline_);
    if (timeline_.steps.empty()) timeline_.steps = find_steps(timeline_);
    return std::move(timeline_);
  }

 private:
  /// What is kept of the event that is read.
  struct Event {
    std::string category;
    std::string name;
    std::string process;
    std::string thread;  ///< and its process
    std::string label;   ///< what an event that describes a process or a thread calls it
    std::string copied;  ///< what JAX's profiler tells of a copy
    TimeSpan time;
    bool timed = false;
    bool complete = false;   ///< phase X: with a beginning and a duration
    bool describes = false;  ///< phase M
    std::optional<std::uint64_t> device;
    std::uint64_t stream = 0;
    std::uint64_t correlation = 0;
    std::uint64_t bytes = 0;
    std::array<std::uint8_t, 2> element_bytes{};
    std::uint64_t elements = 0;
    std::size_t types = 0;
  };

  [[noreturn]] void refuse(std::string_view why) const { throw Error(fmt::format("{}: {}.", file_, why)); }

  void read_object() {
    bool found = false;
    std::string_view key;
    json_.begin_object();
    while (json_.next_key(key)) {
      if (key == "traceEvents") {
        found = true;
        read_events();
      } else if (key == "deviceProperties") {
        read_devices();
      } else if (key == "distributedInfo" && json_.peek() == '{') {
        read_rank();
      } else {
        json_.skip();
      }
    }
    if (!found) refuse("it has no traceEvents; pass a trace that torch.profiler exported");
  }

  void read_events() {
    json_.begin_array();
    while (json_.next_element()) read_event();
  }

  [[nodiscard]] std::string_view why_without_work() const {
    if (has_counter_ranges_) {
      return "it holds ranges of CUPTI's counters, whose times are made up, and no work of a GPU; profile "
             "without profiler_metrics";
    }
    return "it holds no work of a GPU; profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] "
           "on a machine with a GPU; without one, penstock doctor --loader FILE.py:NAME looks at the loader";
  }

  void read_devices() {
    json_.begin_array();
    while (json_.next_element()) {
      std::uint64_t id = 0;
      std::string name;
      json_.begin_object();
      std::string_view key;
      while (json_.next_key(key)) {
        if (key == "id") {
          id = json_.read_count(kMostDevices - 1, "a device's number");
        } else if (key == "name") {
          name = json_.read_string().substr(0, kLongestName);
        } else {
          json_.skip();
        }
      }
      timeline_.devices[static_cast<std::uint16_t>(id)] = name;
    }
  }

  void read_rank() {
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "rank") {
        timeline_.rank = read_whole(kMostRanks, "the number of a rank");
      } else {
        json_.skip();
      }
    }
  }

  void read_event() {
    ++timeline_.events;
    forget_event();
    std::int64_t duration = 0;
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "ph") {
        const std::string_view phase = json_.read_string();
        event_.complete = phase == "X";
        event_.describes = phase == "M";
      } else if (key == "cat") {
        event_.category = json_.read_string();
      } else if (key == "name") {
        event_.name = json_.read_string();
      } else if (key == "pid" || key == "tid") {
        const std::string_view number = json_.peek() == '"' ? json_.read_string() : json_.read_number();
        if (key == "pid") event_.process = number;
        event_.thread += number;
        event_.thread += key == "pid" ? 'p' : 't';
      } else if (key == "ts") {
        event_.time.begin = json_.read_time();
        event_.timed = true;
      } else if (key == "dur") {
        duration = json_.read_time();
      } else if (key == "args" && json_.peek() == '{') {
        read_arguments();
      } else {
        json_.skip();
      }
    }
    if (event_.describes) keep_description();
    if (!event_.complete) return;
    if (!event_.timed) json_.fail("an event with a time (ts)", "one without");
    if (duration < 0) json_.fail("a duration (dur) of 0 or more", "a negative one");
    event_.time.end = event_.time.begin + duration;
    keep_event();
  }

  void forget_event() {
    for (std::string* text :
         {&event_.category, &event_.name, &event_.process, &event_.thread, &event_.label, &event_.copied})
      text->clear();
    event_.timed = event_.complete = event_.describes = false;
    event_.time = {};
    event_.device.reset();
    event_.stream = event_.correlation = event_.bytes = event_.elements = 0;
    event_.element_bytes = {};
    event_.types = 0;
  }

  void read_arguments() {
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "device" || key == "inDevice") {
        event_.device = at_most(read_whole(kMostDevices - 1, "a device's number"), kMostDevices - 1);
      } else if (key == "stream" || key == "sycl queue") {
        event_.stream = read_whole(std::numeric_limits<std::uint32_t>::max(), "a smaller number").value_or(0);
      } else if (key == "correlation" || key == "correlation_id") {
        event_.correlation = read_whole(kMostCorrelation, "a smaller number").value_or(0);
      } else if (key == "bytes") {
        event_.bytes = at_most(read_whole(kMostCopied, "a number of bytes"), kMostCopied).value_or(0);
      } else if (key == "name" && json_.peek() == '"') {
        event_.label = json_.read_string();
      } else if (key == "memcpy_details" && json_.peek() == '"') {
        event_.copied = json_.read_string();
      } else if (key == "Input type" && json_.peek() == '[') {
        read_types();
      } else if (key == "Input Dims" && json_.peek() == '[') {
        read_shapes();
      } else {
        json_.skip();
      }
    }
  }

  static std::optional<std::uint64_t> at_most(std::optional<std::uint64_t> number, std::uint64_t most) {
    return number && *number <= most ? number : std::nullopt;
  }

  /// A number, up to `most`; or any that is written as text, such as the address of a stream. nullopt: it is
  /// none, as of a synchronization without a stream.
  std::optional<std::uint64_t> read_whole(std::uint64_t most, std::string_view what) {
    const char first = json_.peek();
    if (first == '"') return whole_of(json_.read_string());
    if (first != '-') return json_.read_count(most, what);
    json_.skip();
    return std::nullopt;
  }

  void read_types() {
    timeline_.has_types = true;
    json_.begin_array();
    while (json_.next_element()) {
      if (event_.types < event_.element_bytes.size() && json_.peek() == '"') {
        event_.element_bytes[event_.types] = element_bytes(json_.read_string());
      } else {
        json_.skip();
      }
      ++event_.types;
    }
  }

  /// Keeps the number of elements of the first input.
  void read_shapes() {
    bool first = true;
    json_.begin_array();
    while (json_.next_element()) {
      if (!first || json_.peek() != '[') {
        json_.skip();
        continue;
      }
      first = false;
      std::uint64_t elements = 1;
      json_.begin_array();
      while (json_.next_element()) {
        if (json_.peek() == '[') {  // a list of tensors
          json_.skip();
          elements = 0;
          continue;
        }
        const std::uint64_t extent = json_.read_count(std::uint64_t{1} << 60, "an extent");
        if (__builtin_mul_overflow(elements, extent, &elements))
          json_.fail("a shape of fewer elements", "2^64 or more");
      }
      event_.elements = elements;
    }
  }

  /// JAX's profiler names a GPU's process and the threads that stand for its streams, and gives their events
  /// no category.
  void keep_description() {
    constexpr std::string_view kDevice = "/device:GPU:";
    constexpr std::string_view kStream = "Stream #";
    const std::string_view label = event_.label;
    if (event_.name == "process_name" && label.starts_with(kDevice)) {
      device_processes_[event_.process] = number_behind(label, kDevice).value_or(kMostDevices);
    } else if (event_.name == "thread_name" && label.starts_with(kStream)) {
      streams_[event_.thread] = number_behind(label, kStream).value_or(0);
    }
  }

  /// Of an event without a category.
  EventKind kind_of_jax() {
    const auto device = device_processes_.find(event_.process);
    if (device == device_processes_.end()) return call_kind(event_.name) ? EventKind::call : EventKind::other;
    const auto stream = streams_.find(event_.thread);
    if (stream == streams_.end() || device->second >= kMostDevices) return EventKind::other;
    event_.device = device->second;
    event_.stream = stream->second;
    if (!event_.copied.empty()) return EventKind::copy;
    return event_.name.starts_with("Memset") ? EventKind::memory_set : EventKind::kernel;
  }

  void keep_event() {
    switch (event_.category.empty() ? kind_of_jax() : event_kind(event_.category)) {
      case EventKind::kernel:
        return timeline_.work.push_back({event_.time, stream(), device(), kernel_label()});
      case EventKind::memory_set:
        return timeline_.work.push_back({event_.time, stream(), device(), kMemorySet});
      case EventKind::copy:
        return keep_copy();
      case EventKind::call:
        return keep_call();
      case EventKind::op:
        return keep_op();
      case EventKind::frame:
        timeline_.has_frames = true;
        return keep_frame();
      case EventKind::annotation:
        return keep_annotation();
      case EventKind::other:
        has_counter_ranges_ = has_counter_ranges_ || event_.category == "cuda_profiler_range";
    }
  }

  void keep_copy() {
    TimelineCopy copy{event_.time, event_.bytes, correlation(), stream(), device(), {}, {}};
    if (describe_copy(copy, event_.name, event_.copied)) timeline_.copies.push_back(copy);
  }

  void keep_call() {
    auto kind = call_kind(event_.name);
    if (!kind && event_.time.end - event_.time.begin >= kLongCall) kind = CallKind::other;
    if (!kind) return;
    timeline_.calls.push_back({event_.time, correlation(), thread(), *kind});
    if (*kind == CallKind::copy && event_.bytes > 0) call_bytes_[correlation()] = event_.bytes;
  }

  /// ROCm's profiler tells the size of a copy with its call.
  void give_sizes_of_calls() {
    for (TimelineCopy& copy : timeline_.copies) {
      if (copy.bytes > 0) continue;
      const auto known = call_bytes_.find(copy.correlation);
      if (known != call_bytes_.end()) copy.bytes = known->second;
    }
  }

  void keep_op() {
    // PyTorch 1.8 has annotations among its operators.
    if (event_.name.starts_with(kStep) || event_.name.starts_with(kLoader)) return keep_annotation();
    timeline_.has_ops = true;
    timeline_.host.push_back({event_.time, name(), thread(), HostSpanKind::op});
    keep_widening();
  }

  void keep_annotation() {
    if (event_.name.starts_with(kStep)) timeline_.steps.push_back(event_.time);
    if (event_.name.starts_with(kLoader)) {
      timeline_.host.push_back({event_.time, name(), thread(), HostSpanKind::loader_wait});
    } else if (timeline_.ranges.size() < kMostRanges) {
      timeline_.ranges.push_back({event_.time, std::hash<std::string>{}(event_.name), thread()});
    }
  }

  void keep_frame() {
    const TraceFrame frame = trace_frame(event_.name);
    if (frame.place.empty()) return;
    event_.name.erase(0, event_.name.size() - frame.place.size());
    if (!frame.of_user) of_packages_.insert(name());
    timeline_.host.push_back({event_.time, name(), thread(), HostSpanKind::frame});
  }

  void keep_widening() {
    const auto [to, from] = event_.element_bytes;
    if (event_.name != "aten::copy_" || from == 0 || to <= from) return;
    timeline_.widenings.push_back({event_.time.begin, event_.elements, thread(), from, to});
  }

  /// As in a recording. Two kernels in 32,768 may share one.
  std::uint16_t kernel_label() const {
    const auto label = static_cast<std::uint16_t>(std::hash<std::string>{}(event_.name) | 1);
    return is_communication(event_.name) ? communication_label(label) : label;
  }

  std::uint16_t device() {
    if (!event_.device) json_.fail("work of a GPU with its device", "none");
    return static_cast<std::uint16_t>(*event_.device);
  }
  std::uint32_t stream() const { return static_cast<std::uint32_t>(event_.stream); }
  /// Some vendors' have 64 bits. Those of copies and their calls are told apart by the lower half.
  std::uint32_t correlation() const { return static_cast<std::uint32_t>(event_.correlation); }

  /// Names beyond the most that are kept share one.
  std::uint32_t name() {
    event_.name.resize(std::min(event_.name.size(), kLongestName));
    const auto known = names_.find(event_.name);
    if (known != names_.end()) return known->second;
    if (names_.size() + 1 >= kMostNames) event_.name = "(another name)";
    const auto [at, added] =
        names_.try_emplace(event_.name, static_cast<std::uint32_t>(timeline_.names.size()));
    if (added) timeline_.names.push_back(event_.name);
    return at->second;
  }

  std::uint16_t thread() {
    const auto known = threads_.find(event_.thread);
    if (known != threads_.end()) return known->second;
    if (threads_.size() > std::numeric_limits<std::uint16_t>::max())
      json_.fail("at most 65,536 threads", "more");
    return threads_.try_emplace(event_.thread, static_cast<std::uint16_t>(threads_.size())).first->second;
  }

  JsonReader json_;
  const std::string& file_;
  Event event_;
  Timeline timeline_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::set<std::uint32_t> of_packages_;  ///< names of their frames
  std::unordered_map<std::string, std::uint16_t> threads_;
  std::unordered_map<std::uint32_t, std::uint64_t> call_bytes_;  ///< by correlation
  bool has_counter_ranges_ = false;
  std::unordered_map<std::string, std::uint64_t> device_processes_;  ///< of JAX
  std::unordered_map<std::string, std::uint64_t> streams_;           ///< by their threads
};

/// The text of a file, plain or gzip.
class PackedText {
 public:
  explicit PackedText(const std::filesystem::path& file)
      : name_(file.string()), file_(::gzopen(file.c_str(), "rb")) {
    if (file_ == nullptr) throw Error(fmt::format("{} cannot be read: {}.", name_, std::strerror(errno)));
    ::gzbuffer(file_, 1 << 18);
  }
  ~PackedText() { ::gzclose(file_); }
  PackedText(const PackedText&) = delete;
  PackedText& operator=(const PackedText&) = delete;

  std::size_t operator()(std::span<char> destination) {
    const auto most = static_cast<unsigned>(std::min<std::size_t>(destination.size(), 1 << 30));
    const int got = ::gzread(file_, destination.data(), most);
    int error = Z_OK;
    const char* const why = ::gzerror(file_, &error);
    // zlib gives what came before the damage, and tells of a file that is cut short only at its end.
    if (got >= 0 && (error == Z_OK || error == Z_STREAM_END || got > 0)) return static_cast<std::size_t>(got);
    throw Error(fmt::format("{} cannot be read: {}.", name_,
                            error == Z_ERRNO ? std::strerror(errno)
                            : error == Z_BUF_ERROR
                                ? "its gzip data is cut short, as its export did not finish"
                                : why));
  }

 private:
  std::string name_;
  gzFile file_;
};

}  // namespace

Timeline parse_torch_trace(TextSource source, const std::string& file) {
  return TraceParser(source, file).parse();
}

Timeline read_torch_trace(const std::filesystem::path& file) {
  PackedText text(file);
  return parse_torch_trace(text, file.string());
}

}  // namespace penstock
