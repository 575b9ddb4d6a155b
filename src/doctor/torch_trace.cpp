#include "doctor/torch_trace.hpp"

#include "doctor/call_names.hpp"
#include "doctor/recording_format.hpp"
#include "doctor/trace_frames.hpp"

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
constexpr std::size_t kMostRanges = std::size_t{1} << 20;
constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kLoader = "enumerate(DataLoader)#";

std::optional<MemoryKind> end_kind(std::string_view name) {
  if (name == "Pageable") return MemoryKind::pageable;
  if (name == "Pinned") return MemoryKind::pinned;
  if (name == "Device") return MemoryKind::device;
  return std::nullopt;
}

/// Takes "Memcpy HtoD (Pageable -> Device)" apart. False if it is another copy, such as one within the host.
bool read_copy_name(std::string_view name, TimelineCopy& copy) {
  constexpr std::string_view kMemcpy = "Memcpy ";
  if (!name.starts_with(kMemcpy)) return false;
  const std::string_view kind = name.substr(kMemcpy.size(), 4);
  if (kind == "HtoD") {
    copy.direction = CopyDirection::h2d;
  } else if (kind == "DtoH") {
    copy.direction = CopyDirection::d2h;
  } else if (kind == "DtoD" || kind == "PtoP") {
    copy.direction = CopyDirection::d2d;
  } else {
    return false;
  }
  const std::size_t open = name.find('(');
  const std::size_t arrow = name.find(" -> ");
  const std::size_t close = name.rfind(')');
  if (open < arrow && arrow < close && close != std::string_view::npos) {
    copy.source = end_kind(name.substr(open + 1, arrow - open - 1));
    copy.destination = end_kind(name.substr(arrow + 4, close - arrow - 4));
  }
  return true;
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

class TraceParser {
 public:
  TraceParser(TextSource source, const std::string& file) : json_(source, file), file_(file) {}

  Timeline parse() {
    json_.skip_mark();
    json_.begin_object();
    bool found = false;
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "traceEvents") {
        found = true;
        json_.begin_array();
        while (json_.next_element()) read_event();
      } else if (key == "deviceProperties") {
        read_devices();
      } else {
        json_.skip();
      }
    }
    json_.finish();
    if (!found) refuse("it has no traceEvents; pass a trace that torch.profiler exported");
    if (timeline_.events == 0) refuse("it has no events; profile some steps of the program");
    if (timeline_.copies.empty() && timeline_.work.empty()) {
      refuse(
          "it holds no work of a GPU; profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] "
          "on a machine with a GPU; without one, penstock doctor --loader FILE.py:NAME looks at the loader");
    }
    sort_timeline(timeline_);
    place_frames(timeline_, of_packages_);
    if (timeline_.steps.empty()) timeline_.steps = find_steps(timeline_);
    return std::move(timeline_);
  }

 private:
  /// What is kept of the event that is read.
  struct Event {
    std::string category;
    std::string name;
    std::string thread;
    TimeSpan time;
    bool timed = false;
    bool complete = false;  ///< phase X: with a beginning and a duration
    std::optional<std::uint64_t> device;
    std::uint64_t stream = 0;
    std::uint64_t correlation = 0;
    std::uint64_t bytes = 0;
    std::array<std::uint8_t, 2> element_bytes{};
    std::uint64_t elements = 0;
    std::size_t types = 0;
  };

  [[noreturn]] void refuse(std::string_view why) const { throw Error(fmt::format("{}: {}.", file_, why)); }

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

  void read_event() {
    ++timeline_.events;
    event_.category.clear();
    event_.name.clear();
    event_.thread.clear();
    event_.timed = event_.complete = false;
    event_.time = {};
    event_.device.reset();
    event_.stream = event_.correlation = event_.bytes = event_.elements = 0;
    event_.element_bytes = {};
    event_.types = 0;
    std::int64_t duration = 0;
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "ph") {
        event_.complete = json_.read_string() == "X";
      } else if (key == "cat") {
        event_.category = json_.read_string();
      } else if (key == "name") {
        event_.name = json_.read_string();
      } else if (key == "pid" || key == "tid") {
        event_.thread += json_.peek() == '"' ? json_.read_string() : json_.read_number();
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
    if (!event_.complete) return;
    if (!event_.timed) json_.fail("an event with a time (ts)", "one without");
    if (duration < 0) json_.fail("a duration (dur) of 0 or more", "a negative one");
    event_.time.end = event_.time.begin + duration;
    keep_event();
  }

  void read_arguments() {
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      if (key == "device" || key == "inDevice") {
        event_.device = read_device();
      } else if (key == "stream") {
        event_.stream = read_small(std::numeric_limits<std::uint32_t>::max());
      } else if (key == "correlation") {
        event_.correlation = read_small(std::numeric_limits<std::uint64_t>::max());
      } else if (key == "bytes") {
        event_.bytes = json_.read_count(std::uint64_t{1} << 60, "a number of bytes");
      } else if (key == "Input type" && json_.peek() == '[') {
        read_types();
      } else if (key == "Input Dims" && json_.peek() == '[') {
        read_shapes();
      } else {
        json_.skip();
      }
    }
  }

  std::optional<std::uint64_t> read_device() {
    if (json_.peek() == '-' || json_.peek() == '"') {  // of synchronizations that have none
      json_.skip();
      return std::nullopt;
    }
    return json_.read_count(kMostDevices - 1, "a device's number");
  }

  /// 0 if it is not such a number. Synchronizations without a stream have none.
  std::uint64_t read_small(std::uint64_t most) {
    if (json_.peek() != '-' && json_.peek() != '"') return json_.read_count(most, "a smaller number");
    json_.skip();
    return 0;
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

  void keep_event() {
    const std::string_view category = event_.category;
    if (category == "kernel" || category == "gpu_memset") {
      timeline_.work.push_back({event_.time, stream(), device(), label()});
    } else if (category == "gpu_memcpy") {
      TimelineCopy copy{event_.time, event_.bytes, correlation(), stream(), device(), {}, {}, {}, {}};
      if (read_copy_name(event_.name, copy)) timeline_.copies.push_back(copy);
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      if (const auto kind = call_kind(event_.name)) {
        timeline_.calls.push_back({event_.time, correlation(), thread(), *kind});
      }
    } else if (category == "cpu_op") {
      timeline_.has_ops = true;
      timeline_.host.push_back({event_.time, name(), thread(), HostSpanKind::op});
      keep_widening();
    } else if (category == "python_function") {
      timeline_.has_frames = true;
      keep_frame();
    } else if (category == "user_annotation") {
      if (event_.name.starts_with(kStep)) timeline_.steps.push_back(event_.time);
      if (event_.name.starts_with(kLoader)) {
        timeline_.host.push_back({event_.time, name(), thread(), HostSpanKind::loader_wait});
      } else if (timeline_.ranges.size() < kMostRanges) {
        timeline_.ranges.push_back({event_.time, std::hash<std::string>{}(event_.name), thread()});
      }
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

  /// As in a recording, odd for kernels. Two of them in 32,768 may share one.
  std::uint16_t label() const {
    if (event_.category == "gpu_memset") return recording::kMemorySet;
    return static_cast<std::uint16_t>(std::hash<std::string>{}(event_.name) | 1);
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
