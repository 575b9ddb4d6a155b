#pragma once

#include "doctor/timeline/device_account.hpp"
#include "doctor/timeline/time_spans.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

/// What the threads do that decide when a device works.
struct HostActivity {
  SpanList waits;   ///< in `next()` of a DataLoader
  SpanList starts;  ///< in a call of CallKind::other
  SpanList busy;    ///< in an operator or a call, and not in one of these
  SpanList calls;   ///< in a call, as of these; operators on the host make none
  bool observed = false;
  std::vector<bool> launches;  ///< by thread: it is one of them
};

/// By thread: it launches kernels.
[[nodiscard]] std::vector<bool> threads_that_launch(const Timeline& timeline);
[[nodiscard]] HostActivity host_activity(const Timeline& timeline, std::uint16_t device);

/// True if kernels ran, but no call launched them.
[[nodiscard]] bool lacks_launches(const Timeline& timeline);

/// Everything that was recorded.
[[nodiscard]] TimeSpan whole_window(const Timeline& timeline);
/// The steps as one span, or everything.
[[nodiscard]] TimeSpan account_window(const Timeline& timeline);

/// What one device does within a window.
struct DeviceActivity {
  SpanList kernels;    ///< and memory sets and copies within devices
  SpanList computing;  ///< of these, without those that communicate
  SpanList h2d;
  SpanList d2h;
  SpanList busy;  ///< any of these
};
[[nodiscard]] DeviceActivity device_activity(const Timeline& timeline, std::uint16_t device, TimeSpan window);

[[nodiscard]] DeviceAccount device_account(const Timeline& timeline, std::uint16_t device, TimeSpan window,
                                           const DeviceActivity& activity, const HostActivity& host);
/// In the order of their numbers.
[[nodiscard]] std::vector<std::uint16_t> active_devices(const Timeline& timeline);

}  // namespace penstock
