#pragma once

#include <penstock/device/device_tuning.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>

namespace penstock {

/// Bytes per second at which batches reach the device, by each way to gather them.
struct GatherRates {
  double by_host = 0;  ///< host threads, or the link if that is slower
  double by_kernels = 0;
  double by_copies = 0;  ///< of the link, or of the thread that enqueues them if that is slower
};
/// Of batches of `samples` of `bytes` each, shuffled or `in_sequence`. What was measured comes from the
/// profile, the rest from the tuning. Asks no device. Throws InvalidArgument for 0 samples.
[[nodiscard]] GatherRates gather_rates(const LinkProfile& profile, const DeviceTuning& tuning,
                                       std::size_t bytes, std::size_t samples, bool in_sequence);
/// True if the copy engines are nearly as fast as kernels, or faster, and the host is not twice as fast.
/// Copies take no multiprocessor, and kernels no processor time, so a slower way may be the better one.
[[nodiscard]] bool copies_pay(const GatherRates& rates) noexcept;
/// True unless the host is twice as fast.
[[nodiscard]] bool kernels_pay(const GatherRates& rates) noexcept;

}  // namespace penstock
