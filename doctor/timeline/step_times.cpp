#include "doctor/timeline/step_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>

namespace penstock {

namespace {

constexpr std::size_t kBatchMeans = 10;
static_assert(kBatchMeans <= kStepsForError, "each batch has steps");
constexpr double kStudent = 2.262;  // 97.5 % of the t distribution with kBatchMeans - 1 degrees of freedom

double mean_seconds(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_error(std::span<const double> seconds) {
  std::array<double, kBatchMeans> batches{};
  for (std::size_t i = 0; i < kBatchMeans; ++i) {
    const std::size_t begin = i * seconds.size() / kBatchMeans;
    const std::size_t end = (i + 1) * seconds.size() / kBatchMeans;
    batches[i] = mean_seconds(seconds.subspan(begin, end - begin));
  }
  const double middle = mean_seconds(batches);
  double squares = 0;
  for (const double batch : batches) squares += (batch - middle) * (batch - middle);
  return kStudent * std::sqrt(squares / (kBatchMeans - 1) / kBatchMeans);
}

}  // namespace

std::optional<StepTimes> step_times(const std::vector<TimeSpan>& steps) {
  if (steps.size() < kStepsToCompare) return std::nullopt;
  std::vector<double> seconds;
  seconds.reserve(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TraceTime end = i + 1 < steps.size() ? steps[i + 1].begin : steps[i].end;
    seconds.push_back(seconds_of(end - steps[i].begin));
  }
  StepTimes times;
  if (steps.size() >= kStepsForError) times.mean_error = mean_error(seconds);
  std::ranges::sort(seconds);
  const std::size_t left_out = seconds.size() / 10;  // at each end
  times.tenth = seconds[left_out];
  times.median = seconds[(seconds.size() - 1) / 2];
  times.nine_tenths = seconds[seconds.size() - 1 - left_out];
  return times;
}

}  // namespace penstock
