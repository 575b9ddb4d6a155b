#pragma once

#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::test {

/// Writes a timeline as a program on one thread and one stream would. Times are in microseconds; each event
/// happens when the test says.
class TimelineBuilder {
 public:
  static TimeSpan us(std::int64_t begin, std::int64_t end) { return {begin * 1000, end * 1000}; }

  TimelineBuilder() {
    timeline.has_ops = timeline.has_frames = timeline.has_looks = timeline.has_types = true;
  }

  std::uint32_t name(std::string_view text) {
    for (std::size_t i = 0; i < timeline.names.size(); ++i) {
      if (timeline.names[i] == text) return static_cast<std::uint32_t>(i);
    }
    timeline.names.emplace_back(text);
    return static_cast<std::uint32_t>(timeline.names.size() - 1);
  }
  void step(std::int64_t begin, std::int64_t end) { timeline.steps.push_back(us(begin, end)); }
  void host(HostSpanKind kind, std::string_view text, std::int64_t begin, std::int64_t end,
            std::uint16_t thread = 0) {
    timeline.host.push_back({us(begin, end), name(text), thread, kind});
  }
  void op(std::string_view text, std::int64_t begin, std::int64_t end) {
    host(HostSpanKind::op, text, begin, end);
  }
  void frame(std::string_view text, std::int64_t begin, std::int64_t end) {
    host(HostSpanKind::frame, text, begin, end);
  }
  void loader_wait(std::int64_t begin, std::int64_t end, std::uint16_t thread = 0) {
    host(HostSpanKind::loader_wait, "enumerate(DataLoader)#x.__next__", begin, end, thread);
  }
  void look(std::string_view text, std::int64_t time, std::uint16_t thread = 0) {
    timeline.looks.push_back({time * 1000, name(text), thread});
  }
  std::uint32_t call(CallKind kind, std::int64_t begin, std::int64_t end, std::uint16_t thread = 0) {
    timeline.calls.push_back({us(begin, end), ++correlation_, thread, kind});
    return correlation_;
  }
  /// A kernel that was launched at `launched`, which takes 1.
  void kernel(std::int64_t launched, std::int64_t begin, std::int64_t end, std::uint32_t stream = 7,
              std::uint16_t device = 0) {
    call(CallKind::launch, launched, launched + 1);
    timeline.work.push_back({us(begin, end), stream, device});
  }
  /// A copy whose call takes from `called` to `returned`.
  void copy(CopyDirection direction, MemoryKind host_kind, std::uint64_t bytes, std::int64_t called,
            std::int64_t returned, std::int64_t begin, std::int64_t end, std::uint32_t stream = 7) {
    TimelineCopy copy;
    copy.time = us(begin, end);
    copy.bytes = bytes;
    copy.correlation = call(CallKind::copy, called, returned);
    copy.stream = stream;
    copy.direction = direction;
    copy.source = direction == CopyDirection::h2d ? host_kind : MemoryKind::device;
    timeline.copies.push_back(copy);
  }
  [[nodiscard]] Timeline sorted() const {
    Timeline copy = timeline;
    sort_timeline(copy);
    return copy;
  }

  Timeline timeline;

 private:
  std::uint32_t correlation_ = 0;
};

/// One account for each device that did anything, in the order of their numbers.
inline std::vector<DeviceAccount> device_accounts(const Timeline& timeline) {
  const TimeSpan window = account_window(timeline);
  std::vector<DeviceAccount> accounts;
  for (const std::uint16_t device : active_devices(timeline)) {
    accounts.push_back(device_account(timeline, device, window, device_activity(timeline, device, window),
                                      host_activity(timeline, device)));
  }
  return accounts;
}

}  // namespace penstock::test
