#include "loader/drawn_batches.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

DrawnBatches::DrawnBatches(std::shared_ptr<BatchSampler> sampler, std::uint64_t samples, std::uint64_t batch,
                           std::size_t ahead)
    : sampler_(std::move(sampler)), samples_(samples), batch_(batch), ahead_(ahead) {}

DrawnBatches::Asking::Asking(DrawnBatches& drawn) : drawn_(drawn) {
  {
    const std::lock_guard lock(drawn_.mutex_);
    ++drawn_.asking_;
  }
  try {
    drawn_.draw();
  } catch (...) {
    const std::lock_guard lock(drawn_.mutex_);
    --drawn_.asking_;
    throw;
  }
}

DrawnBatches::Asking::~Asking() {
  {
    const std::lock_guard lock(drawn_.mutex_);
    if (asks_) --drawn_.asking_;
  }
  drawn_.drawn_.notify_one();
}

void DrawnBatches::Asking::has(std::uint64_t generation, bool is_end) {
  {
    const std::lock_guard lock(drawn_.mutex_);
    --drawn_.asking_;
    asks_ = false;
    if (generation != drawn_.generation_) return;
    --drawn_.out_;
    if (is_end) {
      drawn_.ended_ = drawn_.begun_ = false;
      ++drawn_.epoch_;
    }
  }
  drawn_.draw();
}

void DrawnBatches::draw() {
  const std::lock_guard sampling(sampler_mutex_);
  while (is_wanted()) {
    Item item;
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        item.indices = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    draw_into(item);
    bool is_waited_for = false;
    {
      const std::lock_guard lock(mutex_);
      ended_ = item.error != nullptr || (item.indices.empty() && item.lent.indices.empty());
      is_waited_for = out_++ < asking_;
      items_.push_back(std::move(item));
    }
    if (is_waited_for) drawn_.notify_one();
  }
}

bool DrawnBatches::is_wanted() {
  const std::lock_guard lock(mutex_);
  if (asking_ == 0 || ended_) return false;
  return out_ < asking_ || (out_ < ahead_ + asking_ - 1 && sampler_->is_ready());
}

void DrawnBatches::draw_into(Item& item) {
  item.indices.clear();
  try {
    if (!begun_) sampler_->start_epoch(epoch_);
    begun_ = true;
    if (sampler_->lend(item.lent)) {
      if (item.lent.indices.empty()) check(item.indices);
    } else if (sampler_->next(item.indices)) {
      check(item.indices);
    } else {
      item.indices.clear();
    }
    item.reading_epoch = sampler_->reading_epoch(epoch_);
  } catch (const BatchSampler::Interrupted&) {
    throw;
  } catch (...) {
    item.error = std::current_exception();
  }
}

void DrawnBatches::check(const std::vector<std::uint64_t>& indices) const {
  if (indices.empty()) throw InvalidArgument("The batch sampler gave an empty batch.");
  if (indices.size() > batch_) {
    throw InvalidArgument(fmt::format(
        "The batch sampler gave a batch of {} samples, and the loader's batch size is {}: make the "
        "batch size as large as the largest batch.",
        indices.size(), batch_));
  }
  if (!are_below(indices, samples_)) {
    throw InvalidArgument(fmt::format("The batch sampler gave the index {}, and there are {} samples.",
                                      std::ranges::max(indices), samples_));
  }
}

bool DrawnBatches::wait() {
  std::unique_lock lock(mutex_);
  drawn_.wait(lock, [&] { return stopped_ || !items_.empty(); });
  if (stopped_) return false;
  Item& item = items_.front();  // stays there: no other thread takes it
  lock.unlock();
  if (item.error != nullptr) std::rethrow_exception(item.error);
  if (item.lent.indices.empty()) return true;
  item.indices.assign(item.lent.indices.begin(), item.lent.indices.end());
  item.lent = {};
  check(item.indices);
  return true;
}

bool DrawnBatches::is_drawn() const {
  const std::lock_guard lock(mutex_);
  return !stopped_ && !items_.empty();
}

bool DrawnBatches::peek(std::size_t later, std::vector<std::uint64_t>& indices) const {
  const std::lock_guard lock(mutex_);
  if (later >= items_.size()) return false;
  const Item& item = items_[later];
  const std::span<const std::uint64_t> drawn = item.lent.indices.empty() ? item.indices : item.lent.indices;
  // Those that do not fit are an error in their turn.
  if (drawn.empty() || drawn.size() > batch_ || !are_below(drawn, samples_)) return false;
  indices.assign(drawn.begin(), drawn.end());
  return true;
}

std::uint64_t DrawnBatches::take(std::vector<std::uint64_t>& indices) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t epoch = items_.front().reading_epoch;
  indices.swap(items_.front().indices);
  spare_.push_back(std::move(items_.front().indices));
  items_.pop_front();
  return epoch;
}

void DrawnBatches::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  drawn_.notify_all();
}

void DrawnBatches::restart(std::uint64_t epoch, std::uint64_t generation) {
  const std::lock_guard sampling(sampler_mutex_);
  const std::lock_guard lock(mutex_);
  items_.clear();
  out_ = 0;
  generation_ = generation;
  epoch_ = epoch;
  begun_ = ended_ = stopped_ = false;
}

const DrawnBatch& SharedDraws::of(std::uint64_t item) {
  while (first_ + kept_.size() <= item) {
    if (!drawn_.wait()) throw BatchSampler::Interrupted{};
    DrawnBatch batch{.indices = std::exchange(spare_, {})};
    batch.reading_epoch = drawn_.take(batch.indices);
    kept_.push_back(std::move(batch));
  }
  return kept_[static_cast<std::size_t>(item - first_)];
}

bool SharedDraws::has(std::uint64_t item) const { return item < first_ + kept_.size() || drawn_.is_drawn(); }

void SharedDraws::forget_before(std::uint64_t item) {
  while (first_ < item && !kept_.empty()) {
    spare_ = std::move(kept_.front().indices);
    kept_.pop_front();
    ++first_;
  }
}

void SharedDraws::restart() {
  kept_.clear();
  first_ = 0;
}

}  // namespace penstock
