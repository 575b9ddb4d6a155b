#include "loader/batch_parts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {

namespace {

// Of the largest weight. Small enough that a batch's samples times the sum of the weights do not overflow.
constexpr double kFinest = 1000;

}  // namespace

BatchSplit::BatchSplit(const std::vector<double>& weights) : bounds_{0} {
  const double largest = std::ranges::max(weights);
  for (const double weight : weights) {
    const double share = std::max(1.0, std::round(kFinest * weight / largest));
    bounds_.push_back(bounds_.back() + static_cast<std::uint64_t>(share));
  }
}

BatchSplit::Part BatchSplit::part(std::uint64_t samples, std::size_t number) const noexcept {
  const auto place = [&](std::size_t bound) { return samples * bounds_[bound] / bounds_.back(); };
  return {place(number), place(number + 1) - place(number)};
}

std::uint64_t BatchSplit::largest(std::uint64_t samples, std::size_t number) const noexcept {
  const std::uint64_t share = bounds_[number + 1] - bounds_[number];
  return (samples * share + bounds_.back() - 1) / bounds_.back();
}

PartSampler::PartSampler(Sampler whole, BatchSplit split, std::size_t number)
    : whole_(std::move(whole)), split_(std::move(split)), number_(number) {}

bool PartSampler::next(std::vector<std::uint64_t>& indices) {
  // After the rest of this epoch and one whole epoch, there is nothing new.
  for (int ends = 0; ends < 2;) {
    const SampleRun run = whole_.next_run();
    if (run.count == 0) {
      whole_.start_epoch(whole_.epoch() + 1);
      ++ends;
      continue;
    }
    const BatchSplit::Part part = split_.part(run.count, number_);
    if (part.count == 0) continue;
    indices.resize(static_cast<std::size_t>(part.count));
    run.part(part.begin, part.count).fill(indices);
    return true;
  }
  return false;
}

}  // namespace penstock
