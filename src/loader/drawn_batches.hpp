#pragma once

#include <penstock/data/batch_sampler.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock {

/// The batches that a BatchSampler has drawn and the producer has not filled yet. They are drawn on the
/// consumer's thread, within one epoch, so the sampler's code runs when and where the consumer asks.
/// Thread-safe.
class DrawnBatches {
 public:
  /// Draws `ahead` batches more than are given out. Batches of more than `batch` samples, and indices from
  /// `samples` on, are errors.
  DrawnBatches(std::shared_ptr<BatchSampler> sampler, std::uint64_t samples, std::uint64_t batch,
               std::size_t ahead);

  /// For the consumer: draws batches until enough are ahead, or the epoch's end or an error is. Errors go to
  /// the producer, which publishes them in their place.
  void draw();
  /// Notes that a batch was given out, or the end of the epoch: the next one may be drawn from now on.
  void given_out(bool is_end);

  /// For the producer: blocks until a batch or an end is drawn. False if stopped. Throws the sampler's error.
  [[nodiscard]] bool wait();
  /// Swaps the next batch's indices into `indices`; none at the end of the epoch. Only after wait().
  void take(std::vector<std::uint64_t>& indices);

  /// Makes wait() return false until restart.
  void stop() noexcept;
  /// Drops what is drawn, and goes to the beginning of `epoch`; the producer must not be at work.
  void restart(std::uint64_t epoch);

 private:
  struct Item {
    std::vector<std::uint64_t> indices;  ///< none: the epoch's end
    std::exception_ptr error;
  };
  [[nodiscard]] bool is_wanted();
  void draw_into(Item& item);
  void check(const std::vector<std::uint64_t>& indices) const;

  const std::shared_ptr<BatchSampler> sampler_;
  const std::uint64_t samples_;
  const std::uint64_t batch_;
  const std::size_t ahead_;

  std::mutex sampler_mutex_;  ///< held while the sampler is called
  std::mutex mutex_;          ///< guards the rest
  std::condition_variable drawn_;
  std::deque<Item> items_;
  std::vector<std::vector<std::uint64_t>> spare_;
  std::size_t out_ = 0;  ///< batches and ends drawn and not given out
  std::uint64_t epoch_ = 0;
  bool begun_ = false;  ///< the sampler was told of the epoch
  bool ended_ = false;  ///< the epoch's end or an error is drawn
  bool stopped_ = false;
};

}  // namespace penstock
