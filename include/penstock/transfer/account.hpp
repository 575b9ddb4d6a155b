#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device.hpp>
#include <penstock/transfer/transfer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

struct AccountOptions {
  /// Batches whose times are kept for timeline().
  std::size_t timeline_batches = 256;
  /// Most bytes per second that the link carries; 0: unknown. The account never states a higher rate.
  double link_ceiling = 0;
  /// The batches come from a loader that somebody else wrote.
  bool wraps_loader = false;
};

/// Records one batch's times on the device. The maker of the batch gets it from Account::open.
struct TimedBatch {
  Event begin;  ///< the maker records it on the copy stream before the batch's first copy or kernel
  /// An event of the maker's, with EventTiming::on, that it has recorded after the last. Not recorded again
  /// while the account has it.
  std::shared_ptr<const Event> end{};
  /// For a wrapped loader, in place of the two events: the batch's transfers, made with CopyOptions::timed.
  std::vector<Transfer> transfers{};

  // Only the account uses the rest.
  Event asked;
  /// Only for a wrapped loader. Otherwise the batch arrives at `end`, or when it is asked for if that is
  /// later.
  std::optional<Event> arrived{};
  BatchTimes times{};
  bool is_end = false;    ///< not a batch: `asked` alone marks the end of an epoch
  bool is_first = false;  ///< the consumer's work before it belongs to no batch
  bool on_host = false;   ///< the host is the consumer: without events, `times` has when it asked and went on
};

/// What the host knows about a batch when it hands it to the consumer.
struct Delivery {
  TimedBatch* timed = nullptr;  ///< null: the batch is not timed
  BatchTimes times{};           ///< except for the device's
  std::size_t delivered_bytes = 0;
  std::size_t ready = 0;  ///< batches ahead when it was asked for
  double slot_wait_seconds = 0;
};

/// Adds up the counts and times of a feed. The host's are added at once. Times on the device are read from
/// events once these are done, in the order of the batches. The host never waits for them. If the device lags
/// by more batches than there are events, further batches are not timed, nor is the consumer's work on them.
/// Thread-safe. If an event fails, its batch is not timed, or the call throws DeviceError and may be made
/// again.
class Account {
 public:
  /// Batches whose times are not read yet.
  static constexpr std::size_t kRecords = 128;

  explicit Account(const Device& device, const AccountOptions& options = {});

  /// Seconds since the account was opened, on the host's clock.
  [[nodiscard]] double now() const noexcept;

  /// A record for the maker of a batch, who owns it until a Delivery passes it on. Null if none is left.
  [[nodiscard]] TimedBatch* open();
  /// Takes back a record that no Delivery passes on.
  void discard(TimedBatch* timed) noexcept;

  /// The consumer asks for a batch.
  class Request {
   public:
    /// Marks the request on the consumer's `stream`, which outlives it. Null: the consumer is the host.
    /// `is_first`: the consumer's work before this was not on the last batch.
    Request(Account& account, const Stream* stream, bool is_first = false);
    /// Forgets a request without an answer.
    ~Request();
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    /// The batch is there: `stream` was made to wait for it, or the host has waited.
    void answer(const Delivery& delivery);
    /// There is no batch: the epoch is over, or making one failed.
    void end(std::uint64_t epoch);

   private:
    [[nodiscard]] TimedBatch* mark(TimedBatch* timed, const BatchTimes& times, bool is_end);

    Account& account_;
    const Stream* const stream_;
    const bool is_first_;
    const double asked_;
    std::optional<Event> event_;
  };

  void count_resident(std::size_t bytes, double seconds);

  [[nodiscard]] FeedStatistics total();
  /// One of the latest 64 epochs; nullopt for others.
  [[nodiscard]] std::optional<FeedStatistics> epoch(std::uint64_t epoch);
  /// Times of the latest finished batches, oldest first.
  [[nodiscard]] std::vector<BatchTimes> timeline();

 private:
  struct Sum {
    std::uint64_t epoch = 0;
    bool is_first = false;  ///< the loader's first epoch, in which the resident samples were moved
    double first_asked = 0;
    double last_seen = 0;
    double least_transfer = 0;  ///< seconds that the bytes of the timed batches take at the ceiling
    std::uint64_t ready = 0;
    FeedStatistics statistics{};

    [[nodiscard]] double seconds() const noexcept;
    [[nodiscard]] FeedStatistics finished(double seconds, double link_ceiling) const noexcept;
  };
  template <typename Update>
  void update(std::uint64_t epoch, Update&& update);
  void add_record();
  void add_pending(TimedBatch* timed);
  void harvest();
  /// Times in seconds since `anchor`.
  [[nodiscard]] BatchTimes device_times(const TimedBatch& timed, const Event& anchor) const;
  void read(TimedBatch& timed);
  void add_times(BatchTimes& times);

  const Device device_;
  const AccountOptions options_;
  const std::chrono::steady_clock::time_point opened_;
  std::mutex mutex_;
  Event origin_;
  double origin_earliest_ = 0;  ///< the device came to it between these times of the host
  double origin_latest_ = 0;
  std::vector<std::unique_ptr<TimedBatch>> records_;
  std::vector<TimedBatch*> free_;
  std::vector<TimedBatch*> pending_;  ///< answered, oldest first
  bool follows_untimed_ = false;      ///< what is answered next
  std::vector<Event> spare_;          ///< for requests
  TimedBatch* previous_ = nullptr;    ///< the last one read; the next times are measured from its `asked`
  double previous_asked_ = 0;
  double previous_arrived_ = 0;
  double busy_until_ = 0;
  double fed_seconds_ = 0;  ///< of all epochs
  Sum total_;
  std::vector<Sum> epochs_;
  std::vector<BatchTimes> timeline_;
  std::size_t timeline_next_ = 0;
};

}  // namespace penstock
