#pragma once

#include <cstddef>
#include <span>

namespace penstock {

/// Order statistics of repetitions of one measurement, in the unit of the input. The p99 is the smallest
/// value that at least 99 % of the repetitions do not exceed (nearest rank). For fewer than 100 it is the
/// maximum.
struct Summary {
  double median = 0;
  double minimum = 0;
  double maximum = 0;
  double p99 = 0;
  double mean = 0;
  std::size_t repetitions = 0;
};

/// Summarizes `values`, which need not be sorted. The median of an even count is the mean of the middle two.
/// An empty span gives a Summary of zero repetitions.
[[nodiscard]] Summary summarize(std::span<const double> values);

}  // namespace penstock
