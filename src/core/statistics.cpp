#include <penstock/core/statistics.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace penstock {

Summary summarize(std::span<const double> values) {
  if (values.empty()) return {};
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const auto rank99 = static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(n)));
  return {.median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
          .minimum = sorted.front(),
          .maximum = sorted.back(),
          .p99 = sorted[std::min(rank99, n) - 1],
          .mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(n),
          .repetitions = n};
}

}  // namespace penstock
