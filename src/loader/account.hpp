#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

struct Arrival;

/// The events that time one batch on the device. `asked` alone marks an epoch's end.
struct TimedBatch {
  Event begin;  ///< on the copy stream, before the batch's first copy or kernel
  Event end;    ///< and after its last
  Event asked;  ///< on the consumer's stream, when a batch was asked for
  Event arrived;
  BatchTimes times;
  bool is_end = false;

  [[nodiscard]] const Event& last() const noexcept { return is_end ? asked : arrived; }
};

/// Which stage of a batch ran while the consumer's stream waited for it. What is left of the stall is no
/// stage's.
struct StallParts {
  double on_device = 0;  ///< its transfer, or the gather on the device where all of it is resident
  double on_host = 0;    ///< its gather on the host, while nothing of it was on its way
};
[[nodiscard]] StallParts stall_parts(const BatchTimes& times) noexcept;

/// Adds up what a feed does. What the host knows is counted at once; times on the device are read from events
/// once these are done, in the order of the batches. Where the device lags by more batches than there are
/// events for, a batch goes untimed. Thread-safe.
class Account {
 public:
  Account(const Device& device, std::size_t timeline_batches);

  /// Seconds since the account was opened, on the host's clock.
  [[nodiscard]] double now() const noexcept;

  /// For the producer: events for the next batch, its own until the batch is published; null where none is
  /// left.
  [[nodiscard]] TimedBatch* open();
  /// Takes back one that was not published.
  void discard(TimedBatch* timed) noexcept;

  /// Marks on `stream` that a batch is asked for.
  class Question {
   public:
    Question(Account& account, const Stream& stream);
    /// Without an answer the question is forgotten.
    ~Question();
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    /// After `stream` was made to wait for the batch. `delivered_bytes`: of all its fields.
    void answer(const Arrival& arrival, std::size_t delivered_bytes);

   private:
    Account& account_;
    const Stream& stream_;
    const double asked_;
    std::optional<Event> event_;
  };

  void count_resident(std::size_t bytes, double seconds);

  [[nodiscard]] FeedStatistics total();
  [[nodiscard]] std::optional<FeedStatistics> epoch(std::uint64_t epoch);
  [[nodiscard]] std::vector<BatchTimes> timeline();

 private:
  struct Sum {
    std::uint64_t epoch = 0;
    bool is_first = false;  ///< the loader's first: the resident part was moved in it
    double first_asked = 0;
    double last_seen = 0;
    std::uint64_t ready = 0;
    FeedStatistics statistics;
  };
  template <typename Update>
  void update(std::uint64_t epoch, Update&& update);
  void harvest();
  void read(TimedBatch& timed);
  void add_times(const BatchTimes& times, bool is_end);
  [[nodiscard]] static FeedStatistics finish(const Sum& sum);

  const Device device_;
  const std::size_t timeline_batches_;
  const std::chrono::steady_clock::time_point opened_;
  std::mutex mutex_;
  Event origin_;
  std::vector<std::unique_ptr<TimedBatch>> records_;
  std::vector<TimedBatch*> free_;
  std::vector<TimedBatch*> pending_;  ///< answered, oldest first
  std::vector<Event> spare_;          ///< for questions
  TimedBatch* previous_ = nullptr;    ///< the last one read; times are taken from its last event
  double previous_seconds_ = 0;
  double busy_until_ = 0;
  Sum total_;
  std::vector<Sum> epochs_;
  std::vector<BatchTimes> timeline_;
  std::size_t timeline_next_ = 0;
};

}  // namespace penstock
