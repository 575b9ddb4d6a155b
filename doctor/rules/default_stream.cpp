#include "doctor/rules/default_stream.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr TraceTime kNoEnd = std::numeric_limits<TraceTime>::min();
constexpr TraceTime kHandOver = 20'000;  // from one stream to another

/// The kind of the streams with which one of `kind` is ordered. nullopt: none.
std::optional<StreamKind> ordered_with(std::optional<StreamKind> kind) {
  if (kind == StreamKind::default_stream) return StreamKind::blocking;
  if (kind == StreamKind::blocking) return StreamKind::default_stream;
  return std::nullopt;
}

/// Goes through a device's kernels in the order of their beginnings.
class KernelSweep {
 public:
  KernelSweep(const Timeline& timeline, std::uint16_t device)
      : timeline_(timeline), device_(device), next_(timeline.work.begin()) {
    skip_others();
  }

  void advance_to(TraceTime time) {
    for (; next_ != timeline_.work.end() && next_->time.begin < time; ++next_, skip_others()) {
      KernelStream& stream = stream_of(next_->stream);
      stream.end = std::max(stream.end, next_->time.end);
      if (stream.kind) latest(*stream.kind) = std::max(latest(*stream.kind), next_->time.end);
    }
  }
  /// When the last of the kernels ended that began before: on streams of a kind, and on a stream.
  [[nodiscard]] TraceTime end_on(StreamKind kind) { return latest(kind); }
  [[nodiscard]] TraceTime end_on(std::uint32_t stream) { return stream_of(stream).end; }
  /// The first that did not. Null: there is none.
  [[nodiscard]] const TimelineWork* next() const { return next_ != timeline_.work.end() ? &*next_ : nullptr; }
  [[nodiscard]] std::optional<StreamKind> kind_of(std::uint32_t stream) { return stream_of(stream).kind; }

 private:
  struct KernelStream {
    std::optional<StreamKind> kind;
    TraceTime end = kNoEnd;
  };

  void skip_others() {
    while (next_ != timeline_.work.end() && next_->device != device_) ++next_;
  }
  KernelStream& stream_of(std::uint32_t number) {
    const auto [stream, added] = streams_.try_emplace(number);
    if (added) {
      const auto known = timeline_.stream_kinds.find({device_, number});
      if (known != timeline_.stream_kinds.end()) stream->second.kind = known->second;
    }
    return stream->second;
  }
  TraceTime& latest(StreamKind kind) { return ends_[static_cast<std::size_t>(kind)]; }

  const Timeline& timeline_;
  std::uint16_t device_;
  std::vector<TimelineWork>::const_iterator next_;
  std::unordered_map<std::uint32_t, KernelStream> streams_;
  std::array<TraceTime, 3> ends_{kNoEnd, kNoEnd, kNoEnd};  // by kind
};

/// True if the first launch behind the copy's call was over when the copy ended.
bool is_launched_meanwhile(const DeviceView& view, const ViewedCopy& viewed) {
  const std::vector<TimelineCall>& calls = view.timeline.calls;
  const std::uint16_t thread = view.call(*viewed.made).thread;
  for (std::size_t i = viewed.made->call + 1; i < calls.size() && calls[i].thread == thread; ++i) {
    if (calls[i].time.end > viewed.copy->time.end) return false;
    if (calls[i].kind == CallKind::launch) return true;
  }
  return false;
}

/// The sweep has come to the copy's beginning. `engine_free`: when the last copy in its direction before it
/// ended.
bool has_waited(const DeviceView& view, const ViewedCopy& viewed, KernelSweep& sweep, StreamKind other,
                TraceTime engine_free) {
  const TimelineCopy& copy = *viewed.copy;
  const TraceTime end = sweep.end_on(other);
  return end > view.call(*viewed.made).time.end && end > sweep.end_on(copy.stream) &&
         end <= copy.time.begin && copy.time.begin - std::max(end, engine_free) <= kHandOver;
}

bool is_waited_for(const DeviceView& view, const ViewedCopy& viewed, KernelSweep& sweep, StreamKind other) {
  const TraceTime end = viewed.copy->time.end;
  const TimelineWork* const next = sweep.next();
  if (next == nullptr || next->time.begin < end || sweep.kind_of(next->stream) != other) return false;
  const TraceTime begin = next->time.begin;
  return begin - view.busy.end_before(begin, end) <= kHandOver && is_launched_meanwhile(view, viewed);
}

}  // namespace

void mark_held_copies(DeviceView& view) {
  if (view.timeline.stream_kinds.empty()) return;
  KernelSweep sweep(view.timeline, view.account.device);
  std::array<TraceTime, 3> engines_free{kNoEnd, kNoEnd, kNoEnd};  // by direction
  for (ViewedCopy& viewed : view.copies) {
    TraceTime& engine_free = engines_free[static_cast<std::size_t>(viewed.copy->direction)];
    const TraceTime free = std::exchange(engine_free, std::max(engine_free, viewed.copy->time.end));
    const auto other = ordered_with(sweep.kind_of(viewed.copy->stream));
    if (viewed.made == nullptr || !other) continue;
    sweep.advance_to(viewed.copy->time.begin);
    viewed.is_held =
        has_waited(view, viewed, sweep, *other, free) || is_waited_for(view, viewed, sweep, *other);
  }
}

}  // namespace penstock
