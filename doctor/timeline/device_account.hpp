#pragma once

#include "doctor/timeline/step_times.hpp"
#include "doctor/timeline/timeline.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// What a device does at a time. If it does several things, the first of them counts. If it runs no kernels,
/// threads that copy to or from it stand for those that launch kernels.
enum class DevicePart : std::uint8_t {
  kernel,         ///< kernels, memory sets and copies within devices run
  communication,  ///< of kernels, only those run that send data between devices, or wait for other ranks
  exposed_copy,   ///< copies between host and device run, and nothing hides them
  /// Nothing runs, while a thread that launches kernels waits in `next()` of a DataLoader, or of penstock's
  /// Loader or feed.
  waiting_for_data,
  starting,        ///< nothing runs, while such a thread is in a long call of another kind: CUDA starts
  launch_or_sync,  ///< nothing runs, while such a thread is in an operator or in a call of the driver
  other_idle,      ///< nothing runs, and no such thread is in any of these
  /// Nothing runs, and the recording does not hold what the host did. Everything, if it holds no kernels. All
  /// but these, if it holds no copies.
  not_observed,
};
inline constexpr auto kAllDeviceParts = std::to_array(
    {DevicePart::kernel, DevicePart::communication, DevicePart::exposed_copy, DevicePart::waiting_for_data,
     DevicePart::starting, DevicePart::launch_or_sync, DevicePart::other_idle, DevicePart::not_observed});
inline constexpr std::size_t kDeviceParts = kAllDeviceParts.size();
/// "kernel", "exposed_copy", ...: the names in JSON.
[[nodiscard]] std::string_view device_part_name(DevicePart part) noexcept;
/// The words of reports.
[[nodiscard]] std::string_view device_part_label(DevicePart part) noexcept;

/// Copies of one direction between host and device. Nothing is known if the account has no copies.
struct CopyFigures {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t unsized = 0;  ///< of the count: copies whose bytes the recording does not tell
  TraceTime busy = 0;         ///< at least one of them runs
  /// The part of it in which nothing else runs on the device. Unknown if the account has no kernels.
  TraceTime exposed = 0;
};

/// Where the wall-clock time of a device went, in nanoseconds.
struct DeviceAccount {
  std::uint16_t device = 0;
  std::string name;                     ///< empty: not known
  TimeSpan window;                      ///< all marked steps, or from the first to the last record
  std::size_t steps = 0;                ///< 0: the recording marks none, and the window counts as one
  std::optional<StepTimes> step_times;  ///< how they vary; nullopt: there are fewer than kStepsToCompare
  bool has_kernels = true;              ///< kernels were recorded
  bool has_copies = true;               ///< copies were
  std::array<TraceTime, kDeviceParts> parts{};  ///< they add up to the window
  CopyFigures h2d;
  CopyFigures d2h;
  std::uint64_t kernels = 0;  ///< and memory sets; 0 if none were recorded

  [[nodiscard]] TraceTime part(DevicePart of) const noexcept { return parts[static_cast<std::size_t>(of)]; }
  [[nodiscard]] TraceTime total() const noexcept { return window.end - window.begin; }
  /// Kernels run, of any kind.
  [[nodiscard]] TraceTime working() const noexcept {
    return part(DevicePart::kernel) + part(DevicePart::communication);
  }
  /// A part of the whole, 0 to 1.
  [[nodiscard]] double share(DevicePart of) const noexcept;
  /// Seconds of a step.
  [[nodiscard]] double step_seconds() const noexcept;
  [[nodiscard]] double per_step(TraceTime time) const noexcept;
};

}  // namespace penstock
