#include "loader/batch_parts.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace penstock {

namespace {

// Of the largest weight. Small enough that a batch's samples times the sum of the weights do not overflow.
constexpr double kFinest = 1000;

}  // namespace

BatchSplit::BatchSplit(const std::vector<double>& weights) : bounds_{0} {
  const double largest = std::ranges::max(weights);
  for (const double weight : weights) {
    const double share = weight > 0 ? std::max(1.0, std::round(kFinest * weight / largest)) : 0;
    bounds_.push_back(bounds_.back() + static_cast<std::uint64_t>(share));
  }
}

BatchSplit::Part BatchSplit::part(std::uint64_t samples, std::size_t number) const noexcept {
  const std::uint64_t sum = bounds_.back();
  const auto place = [&](std::size_t bound) { return (2 * samples * bounds_[bound] + sum) / (2 * sum); };
  return {place(number), place(number + 1) - place(number)};
}

std::uint64_t BatchSplit::largest(std::uint64_t samples, std::size_t number) const noexcept {
  return (samples * share_of(number) + bounds_.back() - 1) / bounds_.back();
}

std::uint64_t BatchSplit::batch_of(std::uint64_t samples) const noexcept {
  std::uint64_t largest = 0;
  for (std::size_t n = 0; n + 1 < bounds_.size(); ++n) largest = std::max(largest, share_of(n));
  return samples * bounds_.back() / largest;
}

bool BatchSplit::is_even() const noexcept {
  for (std::size_t n = 1; n + 1 < bounds_.size(); ++n) {
    if (share_of(n) != share_of(0)) return false;
  }
  return true;
}

BatchShares::BatchShares(std::vector<double> weights, std::optional<std::size_t> receiver)
    : weights_(std::move(weights)),
      receiver_(receiver),
      gives_way_(weights_.size()),
      batches_to_probe_(weights_.size()) {}

const BatchSplit& BatchShares::of(std::uint64_t batch) {
  while (first_ + splits_.size() <= batch) {
    std::vector<double> weights = next_weights();
    if (latest_ == nullptr || weights != latest_weights_) {
      latest_ = std::make_shared<const BatchSplit>(weights);
      latest_weights_ = std::move(weights);
    }
    splits_.push_back(latest_);
  }
  return *splits_[static_cast<std::size_t>(batch - first_)];
}

std::vector<double> BatchShares::next_weights() {
  std::vector<double> weights = weights_;
  for (std::size_t n = 0; n < weights.size(); ++n) {
    if (!gives_way_[n]) continue;
    if (batches_to_probe_[n]-- > 0) {
      weights[n] = 0;
    } else {
      batches_to_probe_[n] = kBatchesToAProbe - 1;
    }
  }
  return weights;
}

void BatchShares::forget_before(std::uint64_t batch) {
  while (first_ < batch && !splits_.empty()) {
    splits_.pop_front();
    ++first_;
  }
}

void BatchShares::restart() {
  splits_.clear();
  first_ = 0;
}

void BatchShares::set_gives_way(std::size_t number, bool gives_way) {
  if (gives_way && !gives_way_[number]) batches_to_probe_[number] = kBatchesToAProbe - 1;
  gives_way_[number] = gives_way;
}

void BatchShares::leave_out(std::size_t number) { weights_[number] = 0; }

std::uint64_t BatchShares::largest(std::uint64_t samples, std::size_t number) const {
  if (!receiver_) return BatchSplit(weights_).largest(samples, number);
  std::vector<double> alone(weights_.size());
  alone[number] = weights_[number];
  alone[*receiver_] = weights_[*receiver_];
  return BatchSplit(alone).largest(samples, number);
}

PartSampler::PartSampler(const Sampler& whole, std::shared_ptr<SharedDraws> draws,
                         std::shared_ptr<BatchShares> shares, std::size_t number)
    : whole_(whole), draws_(std::move(draws)), shares_(std::move(shares)), number_(number) {}

void PartSampler::go_to(const Sampler& whole) {
  whole_ = whole;
  batch_ = 0;
}

bool PartSampler::next(std::vector<std::uint64_t>& indices) {
  if (draws_ != nullptr) {
    const DrawnBatch& drawn = draws_->of(batch_);
    const std::vector<std::uint64_t>& whole = drawn.indices;
    reading_epoch_ = drawn.reading_epoch;
    const BatchSplit::Part part = shares_->of(batch_++).part(whole.size(), number_);
    const auto own =
        std::span(whole).subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.count));
    indices.assign(own.begin(), own.end());
    return part.count > 0;
  }
  SampleRun run = whole_.next_run();
  if (run.count == 0) {
    whole_.start_epoch(whole_.epoch() + 1);
    run = whole_.next_run();
  }
  reading_epoch_ = run.epoch;
  const BatchSplit::Part part = shares_->of(batch_++).part(run.count, number_);
  if (part.count == 0) return false;
  indices.resize(static_cast<std::size_t>(part.count));
  run.part(part.begin, part.count).fill(indices);
  return true;
}

}  // namespace penstock
