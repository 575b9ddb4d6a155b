#pragma once

#include "doctor/rules/device_view.hpp"

#include <vector>

namespace penstock {

/// What copies cost, in seconds of a step. All are pure functions.

/// While they run and no kernel does.
[[nodiscard]] double exposed_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// While the device idles until they begin: the host pins memory, touches new one or is late with a call.
/// Waits for a DataLoader and the program's own work are findings of their own, and do not count. Nor does
/// the start of CUDA, or what is longer than the copy and its call.
[[nodiscard]] double idle_before(const DeviceView& view, const std::vector<ViewedCopy>& copies);
/// The same, and after they end: the device changes over between streams, or the next launch is late.
[[nodiscard]] double idle_around(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// How long the host is held up by a copy: in its call, and in the synchronization that belongs to it. The
/// call of a copy from pinned memory alone takes no longer than it must. Empty: its call is not known.
[[nodiscard]] TimeSpan wait_for(const DeviceView& view, const ViewedCopy& viewed);

struct WaitsForCopies {
  double all = 0;
  double before = 0;  ///< until they begin: for earlier work, or for the driver that gets ready
};
/// What threads wait at the same time counts once.
[[nodiscard]] WaitsForCopies waits_for(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// How long such copies run, or their calls hold the host up. No change of the copies saves more.
[[nodiscard]] double taken_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// The most that is gained if nothing of copies is `exposed` any more, and the host, which `waited` so long
/// for them, launches ahead: it hides what the device idles.
[[nodiscard]] double most_without_waits(const DeviceView& view, double exposed, double waited);

}  // namespace penstock
