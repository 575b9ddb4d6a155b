#include "doctor/report/copy_rates.hpp"

#include "doctor/timeline/device_activity.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

namespace penstock {

namespace {

constexpr double kPerOctave = 4;
constexpr std::size_t kMostRates = 2000;

}  // namespace

std::vector<CopyRate> copy_rates(const Timeline& timeline) {
  using Key = std::tuple<CopyDirection, std::optional<MemoryKind>, int, int>;
  const auto bin = [](double value) { return static_cast<int>(std::lround(std::log2(value) * kPerOctave)); };
  const TimeSpan window = account_window(timeline);
  std::map<Key, CopyRate> bins;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.direction == CopyDirection::d2d || copy.bytes == 0 || copy.time.begin >= copy.time.end) continue;
    if (!begins_in(copy.time, window)) continue;
    const auto host = copy.direction == CopyDirection::h2d ? copy.source : copy.destination;
    const double seconds = static_cast<double>(copy.time.end - copy.time.begin) * 1e-9;
    const auto bytes = static_cast<double>(copy.bytes);
    CopyRate& rate = bins[{copy.direction, host, bin(bytes), bin(bytes / seconds)}];
    rate.direction = copy.direction;
    rate.host = host;
    ++rate.count;
    rate.bytes += copy.bytes;
    rate.seconds += seconds;
  }
  std::vector<CopyRate> rates;
  double least = -1;  // seconds; all take more
  if (bins.size() > kMostRates) {
    std::vector<double> seconds;
    seconds.reserve(bins.size());
    for (const auto& [key, rate] : bins) seconds.push_back(rate.seconds);
    std::nth_element(seconds.begin(), seconds.begin() + kMostRates, seconds.end(), std::greater<>());
    least = seconds[kMostRates];
  }
  for (const auto& [key, rate] : bins) {
    if (rate.seconds > least) rates.push_back(rate);
  }
  return rates;
}

}  // namespace penstock
