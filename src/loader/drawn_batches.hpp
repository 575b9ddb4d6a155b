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
  /// Draws `ahead` batches for one consumer, and one more for each other that asks at the same time. Batches
  /// of more than `batch` samples, and indices from `samples` on, are errors.
  DrawnBatches(std::shared_ptr<BatchSampler> sampler, std::uint64_t samples, std::uint64_t batch,
               std::size_t ahead);

  /// A consumer that asks for a batch, from before it waits until it has one. Draws for it.
  class Asking {
   public:
    /// Throws BatchSampler::Interrupted. Other errors go to the producer, which publishes them in their
    /// place.
    explicit Asking(DrawnBatches& drawn);
    ~Asking();
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    /// Notes that the consumer has a batch, or the end of the epoch, that was taken in `generation`. Draws
    /// for others that ask. Throws BatchSampler::Interrupted.
    void has(std::uint64_t generation, bool is_end);

   private:
    DrawnBatches& drawn_;
    bool asks_ = true;
  };
  /// Draws if somebody asks. If those who ask get batches that were drawn before, the producer hears of these
  /// once somebody has one: before that its ring may be full, and it would wake twice.
  void draw();

  /// For the producer: blocks until a batch or an end is drawn. Copies indices that are lent. False if
  /// stopped. Throws the sampler's error.
  [[nodiscard]] bool wait();
  /// True if wait() would return at once, with something that is drawn.
  [[nodiscard]] bool is_drawn() const;
  /// Copies the indices of the batch that take() gives so many calls later. False if it is not drawn, does
  /// not fit, or is the epoch's end.
  [[nodiscard]] bool peek(std::size_t later, std::vector<std::uint64_t>& indices) const;
  /// Swaps the next batch's indices into `indices`; none at the end of the epoch. Returns the epoch in which
  /// its samples are read. Only after wait().
  std::uint64_t take(std::vector<std::uint64_t>& indices);

  /// Makes wait() return false until restart.
  void stop() noexcept;
  /// Drops what is drawn, and goes to the beginning of `epoch`; the producer must not be at work.
  void restart(std::uint64_t epoch, std::uint64_t generation);

 private:
  struct Item {
    std::vector<std::uint64_t> indices;  ///< none, and none lent: the epoch's end
    BatchSampler::Lent lent;             ///< until the producer has copied them
    std::uint64_t reading_epoch = 0;
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
  mutable std::mutex mutex_;  ///< guards the rest
  std::condition_variable drawn_;
  std::deque<Item> items_;
  std::vector<std::vector<std::uint64_t>> spare_;
  std::size_t asking_ = 0;
  std::size_t out_ = 0;  ///< batches and ends drawn and not given out
  std::uint64_t generation_ = 0;
  std::uint64_t epoch_ = 0;
  bool begun_ = false;  ///< the sampler was told of the epoch
  bool ended_ = false;  ///< the epoch's end or an error is drawn
  bool stopped_ = false;
};

/// The samples of a batch, and the epoch in which they are read. None: an epoch's end.
struct DrawnBatch {
  std::vector<std::uint64_t> indices;
  std::uint64_t reading_epoch = 0;
};

/// Drawn batches for several devices that each take a part, and look ahead by different numbers of them. A
/// batch and an epoch's end are both items, and items count from the last restart. One thread at a time.
class SharedDraws {
 public:
  /// `drawn` outlives it. Nobody else takes from it.
  explicit SharedDraws(DrawnBatches& drawn) noexcept : drawn_(drawn) {}

  /// Blocks until the item is drawn. It stays until it is forgotten. Throws the sampler's error, and
  /// BatchSampler::Interrupted if drawing is stopped.
  [[nodiscard]] const DrawnBatch& of(std::uint64_t item);
  /// True if an item, the next one after those that were asked for or an earlier one, is drawn.
  [[nodiscard]] bool has(std::uint64_t item) const;
  /// Items before `item` are not asked for any more.
  void forget_before(std::uint64_t item);
  /// Only when the drawn batches were restarted.
  void restart();

 private:
  DrawnBatches& drawn_;
  std::uint64_t first_ = 0;  ///< the number of the first item that is kept
  std::deque<DrawnBatch> kept_;
  std::vector<std::uint64_t> spare_;
};

}  // namespace penstock
