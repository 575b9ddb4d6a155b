#pragma once

#include <penstock/device/memory_kind.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

/// Nanoseconds on the recording's own clock.
using TraceTime = std::int64_t;
[[nodiscard]] constexpr double seconds_of(TraceTime length) noexcept {
  return static_cast<double>(length) * 1e-9;
}

/// From `begin` up to and without `end`, which is not before it.
struct TimeSpan {
  TraceTime begin = 0;
  TraceTime end = 0;
  friend bool operator==(const TimeSpan&, const TimeSpan&) = default;
};

/// A copy on a device.
struct TimelineCopy {
  TimeSpan time;
  std::uint64_t bytes = 0;        ///< 0: not known
  std::uint32_t correlation = 0;  ///< that of the call that made it
  std::uint32_t stream = 0;
  std::uint16_t device = 0;
  CopyDirection direction = CopyDirection::h2d;
  std::optional<MemoryKind> source;  ///< nullopt: the recording does not tell it
  std::uint64_t contents = 0;        ///< of copies to a device: the same for the same bytes; 0: not known
};

/// Any other work on a device: a kernel or a memory set.
struct TimelineWork {
  TimeSpan time;
  std::uint32_t stream = 0;
  std::uint16_t device = 0;
  std::uint16_t label = 0;  ///< the same for the same kernel; 0: not known (work_labels.hpp)
};

/// How a stream's work is ordered with that of the device's others, if no event says it.
enum class StreamKind : std::uint8_t {
  default_stream,  ///< the context's legacy one: it and the blocking ones wait for each other
  blocking,
  non_blocking,  ///< made with cudaStreamNonBlocking: not at all
};

enum class CallKind : std::uint8_t {
  launch,
  copy,
  stream_synchronize,
  device_synchronize,
  event_synchronize,
  pin,       ///< host memory is allocated as pinned, or registered
  unpin,     ///< it is freed, or no longer registered
  allocate,  ///< device memory is allocated, other than in the order of a stream
  free,
  other,  ///< of 1 ms at least, such as those in which CUDA starts or loads kernels; only in traces
};
/// True if the host waits in such a call for work of a device.
[[nodiscard]] constexpr bool is_synchronization(CallKind kind) noexcept {
  return kind == CallKind::stream_synchronize || kind == CallKind::device_synchronize ||
         kind == CallKind::event_synchronize;
}

/// A call of the driver or its runtime.
struct TimelineCall {
  TimeSpan time;
  std::uint32_t correlation = 0;
  std::uint16_t thread = 0;
  CallKind kind = CallKind::launch;
};

/// Of spans that take the same time, the first kind is around the others.
enum class HostSpanKind : std::uint8_t {
  frame,        ///< a Python function outside PyTorch, which is on the thread's stack meanwhile
  op,           ///< an operator of PyTorch
  loader_wait,  ///< `next()` of a DataLoader, or of penstock's Loader or feed
};

/// What a host thread does. The spans of a thread nest.
struct TimelineHostSpan {
  TimeSpan time;
  std::uint32_t name = 0;  ///< index into `names`
  std::uint16_t thread = 0;
  HostSpanKind kind = HostSpanKind::op;
};

/// A thread was seen in the program's own code: in no call that the recorder hears of, and in no `next()`. It
/// may have been in a launch.
struct TimelineLook {
  TraceTime time = 0;
  std::uint32_t name = 0;  ///< index into `names`; UINT32_MAX: not known
  std::uint16_t thread = 0;
};

/// A conversion by `copy_` of values to a wider type.
struct TimelineWidening {
  TraceTime begin = 0;
  std::uint64_t elements = 0;
  std::uint16_t thread = 0;
  std::uint8_t from_bytes = 0;  ///< of an element
  std::uint8_t to_bytes = 0;
};

/// A range that the program marks, by NVTX or record_function.
struct TimelineRange {
  TimeSpan time;
  std::uint64_t label = 0;  ///< the same for the same name
  std::uint16_t thread = 0;
};

enum class TimelineSource : std::uint8_t {
  torch_profiler,  ///< a trace of PyTorch's profiler: frames name the first line of their function
  recorder,        ///< penstock's own: frames name the line of the call
};

/// Records that CUPTI refused to make.
struct RefusedRecords {
  bool kernels = false;
  bool copies = false;
  bool launches = false;
  bool calls = false;
};

/// What a program did, as it was recorded: plain values, without a device. All vectors are in the order that
/// `sort_timeline` gives. Devices are numbered as CUDA does, threads in the order of their appearance.
struct Timeline {
  std::vector<TimelineCopy> copies;
  std::vector<TimelineWork> work;
  std::vector<TimelineCall> calls;
  std::vector<TimelineHostSpan> host;
  std::vector<TimelineLook> looks;
  std::vector<TimelineWidening> widenings;
  std::vector<TimelineRange> ranges;
  std::vector<TimeSpan> steps;  ///< empty: none are marked, and none were found
  /// Of operators ("aten::copy_") and frames. A frame has one for each of its callers, all with one text.
  std::vector<std::string> names;
  std::map<std::uint32_t, std::uint32_t> callers;  ///< by name of a frame: that of the one that called it
  std::map<std::uint16_t, std::string> devices;    ///< names of those that the recording describes
  /// By device and stream, of those of which the recording tells it.
  std::map<std::pair<std::uint16_t, std::uint32_t>, StreamKind> stream_kinds;
  std::uint64_t events = 0;  ///< of the recording, also those that are not kept
  bool has_ops = false;      ///< operators were recorded
  bool has_frames = false;   ///< stacks were recorded
  bool has_looks = false;    ///< a thread that launches kernels was looked at, or its stacks were recorded
  bool is_compiled = false;  ///< the program is not written in Python
  bool has_kernels = true;   ///< kernels were recorded, as far as there were any
  bool has_copies = true;    ///< copies were
  bool has_launches = true;  ///< calls that launch kernels were
  bool has_calls = true;     ///< all other calls were
  RefusedRecords refused;    ///< what CUPTI refused of those that were not; the others somebody left out
  bool has_types = false;    ///< types and shapes of the operators' inputs were recorded
  std::optional<std::uint64_t> rank;  ///< among the processes of a distributed program, if a trace tells it
  TimelineSource source = TimelineSource::torch_profiler;
  std::vector<std::string> notes;  ///< sentences: what the recording lacks, and why
};

[[nodiscard]] inline bool is_trace(const Timeline& timeline) noexcept {
  return timeline.source == TimelineSource::torch_profiler;
}

/// Puts copies, work and steps in the order of their beginnings; calls, host spans, looks and widenings in
/// that of threads, then of beginnings, then the longer one first.
void sort_timeline(Timeline& timeline);

/// The steps of a program that marks none as such. If it marks ranges: those of one name and thread that
/// occur five times at least, do not overlap, and cover half of the time from the first to the last; of such
/// names that cover nearly the most, the most numerous. A step then goes from one range's beginning to the
/// next one's. Otherwise: the shortest sequence of labelled kernels and copies on the busiest device that
/// repeats exactly, at least five times in turn, and that most of the work belongs to; or more steps that are
/// nearly the same. A step begins with the longest idle time within it. Of a trace: if none of these are
/// found, or many batches are drawn in each, from one batch to the next; and what repeats is no step if
/// nothing of the host's comes with it, and twice as much of the trace lies outside. Empty if there is none.
/// `timeline` is sorted.
[[nodiscard]] std::vector<TimeSpan> find_steps(const Timeline& timeline);

}  // namespace penstock
