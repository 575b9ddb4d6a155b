#include "loader/gather_rates.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>

namespace penstock {

namespace {

using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;

// The share of the link's rate that kernels reach, unless it was measured.
constexpr double kKernelShare = 0.8;
// Kernels must be this many times as fast as copy engines to be worth their multiprocessors.
constexpr double kWorthMultiprocessors = 1.25;
// The host must be this many times as fast as either to be worth its processors.
constexpr double kWorthProcessors = 2.0;

/// Bytes per second of the largest copy of a curve; `otherwise` if it has none.
double last_rate(const LinkProfile& profile, Curve curve, double otherwise) {
  const auto found = profile.curves.find(curve);
  if (found == profile.curves.end() || found->second.empty()) return otherwise;
  const double rate = static_cast<double>(found->second.back().bytes) / found->second.back().seconds;
  return rate > 0 ? rate : otherwise;
}

/// Seconds of a sample in a shuffled batch, if no gather was measured: from the curves and the tuning.
double unmeasured_seconds(const LinkProfile& profile, const DeviceTuning& tuning, Gather gather,
                          std::size_t bytes, double link) {
  const auto size = static_cast<double>(bytes);
  if (gather == Gather::host)
    return std::max(size / last_rate(profile, Curve::staged_h2d, link), tuning.host_sample_seconds);
  if (gather == Gather::zero_copy) return std::max(size / (kKernelShare * link), tuning.link_sample_seconds);
  if (bytes >= tuning.copied_sample_bytes) return size / link;
  return std::max(size / (tuning.small_copy_share * link), tuning.small_copy_seconds);
}

}  // namespace

GatherRates gather_rates(const LinkProfile& profile, const DeviceTuning& tuning, std::size_t bytes,
                         std::size_t samples, bool in_sequence) {
  if (samples == 0) throw InvalidArgument("A batch has no samples; give it at least one.");
  const double link = last_rate(profile, Curve::pinned_h2d, tuning.unstated_link_rate);
  const auto count = static_cast<double>(samples);
  const auto size = static_cast<double>(bytes);
  const auto rate = [&](Gather gather) {
    const auto measured = profile.gather_seconds(gather, bytes, count);
    const double seconds =
        measured ? *measured / count : unmeasured_seconds(profile, tuning, gather, bytes, link);
    return size / seconds;
  };
  return {.by_host = std::min(rate(Gather::host), link),
          .by_kernels = rate(Gather::zero_copy),
          .by_copies =
              in_sequence ? link : std::min(rate(Gather::copy_engine), size / tuning.enqueue_copy_seconds)};
}

bool copies_pay(const GatherRates& rates) noexcept {
  return rates.by_kernels <= kWorthMultiprocessors * rates.by_copies &&
         rates.by_host <= kWorthProcessors * rates.by_copies;
}

bool kernels_pay(const GatherRates& rates) noexcept {
  return rates.by_host <= kWorthProcessors * rates.by_kernels;
}

}  // namespace penstock
