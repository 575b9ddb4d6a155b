#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The part of a feed that sets the pace. The others wait for it.
enum class FeedLimit : std::uint8_t {
  unknown,    ///< too few batches were timed to tell
  consumer,   ///< your step: the consumer's work between two batches
  link,       ///< transfers between host and device
  loader,     ///< the wrapped loader, or its workers; which stage of it is not known
  fetch,      ///< of a wrapped DataLoader: its dataset, which gives the samples of a batch
  collate,    ///< of a wrapped DataLoader: its collate_fn, which makes a batch of them
  transport,  ///< of a wrapped DataLoader: bringing a batch from its worker
  pin,        ///< batches of a wrapped loader are copied to pinned memory, or their memory is pinned
  gather,     ///< host threads that gather samples, or that pack and send the batches of a wrapped loader
  decode,     ///< host threads that decode pictures
  device,     ///< kernels that gather samples from device memory
  residency,  ///< moving the resident samples to the device, which happens once
  batches,    ///< the fixed cost of each batch, whatever its size
};

/// The name above: "gather".
[[nodiscard]] std::string_view feed_limit_name(FeedLimit limit) noexcept;
/// The name that the printed text uses: "host gather".
[[nodiscard]] std::string_view feed_limit_label(FeedLimit limit) noexcept;

/// What a feed did, and where its time went. `feed_figures` explains each figure. Seconds are wall time, and
/// stages overlap. Figures marked (device) come from the device's clock. They cover the batches that
/// `timed_batches` counts, without work that has not ended yet.
struct FeedStatistics {
  bool wraps_loader = false;    ///< the batches come from a loader that somebody else wrote
  bool decodes = false;         ///< host threads decode pictures where they would gather samples
  bool device_decodes = false;  ///< the device decodes most of them: the time of transfers has that, too
  bool knows_consumer = true;   ///< false if nobody said on which stream the batches are used

  std::uint64_t epochs = 0;
  std::uint64_t batches = 0;
  std::uint64_t samples = 0;
  std::uint64_t arrays = 0;  ///< counted for a wrapped loader
  std::uint64_t failed_samples = 0;
  std::vector<std::string> failures{};  ///< what is wrong with the first kMostFailures of them
  static constexpr std::size_t kMostFailures = 20;
  std::uint64_t delivered_bytes = 0;
  std::uint64_t link_bytes = 0;
  std::uint64_t resident_bytes = 0;
  double resident_seconds = 0;

  double seconds = 0;
  double gather_seconds = 0;    ///< for a wrapped loader: taking its batches apart, packing and enqueuing
  double send_pin_seconds = 0;  ///< the part of that in which a wrapped loader's batches were pinned
  double slot_wait_seconds = 0;
  std::uint64_t timed_batches = 0;
  double transfer_seconds = 0;          ///< (device); at least the bytes' time at the link's ceiling
  double kernel_seconds = 0;            ///< (device)
  double compute_seconds = 0;           ///< (device)
  double stall_seconds = 0;             ///< (device)
  double first_stall_seconds = 0;       ///< (device); the part of that for first batches of epochs
  double exposed_loader_seconds = 0;    ///< (device)
  double exposed_transfer_seconds = 0;  ///< (device)
  double exposed_kernel_seconds = 0;    ///< (device)
  double exposed_gather_seconds = 0;    ///< (device)

  // Measured on the thread that iterates over a wrapped loader; 0 for penstock's own loader.
  double startup_seconds = 0;
  double loader_seconds = 0;
  unsigned loader_workers = 0;  ///< of a wrapped DataLoader
  bool starts_workers = true;   ///< it may start workers in each epoch: they are not persistent
  // Stages of a wrapped DataLoader. Those of workers are divided by the number of workers, so that each is
  // the least time that the stage needs. A worker writes a batch, and the thread receives it. If some batches
  // were not timed, they count as the mean of the others.
  double fetch_seconds = 0;
  double collate_seconds = 0;
  double write_seconds = 0;
  double receive_seconds = 0;
  double pin_seconds = 0;        ///< a DataLoader without workers pins its batches itself
  std::string stages_unknown{};  ///< why no stage was timed: "a loader of type list is not a DataLoader";
                                 ///< empty: they were
  double land_seconds = 0;
  double consumer_seconds = 0;

  double mean_ready = 0;
  std::size_t prefetch_depth = 0;
  std::size_t slots = 0;
  std::size_t ring_bytes = 0;
  double link_ceiling = 0;
  std::uint64_t sample_bytes = 0;

  [[nodiscard]] double samples_per_second() const noexcept;
  /// 1e9 bytes per second over `seconds`.
  [[nodiscard]] double link_gbps() const noexcept;
  [[nodiscard]] double delivered_gbps() const noexcept;
  /// link_gbps over the ceiling; 0 if the ceiling is unknown.
  [[nodiscard]] double link_efficiency() const noexcept;
  /// GB/s over the link while transfers ran.
  [[nodiscard]] double transfer_gbps() const noexcept;
  /// Share of its time that the consumer's stream waited, 0 to 1.
  [[nodiscard]] double stall_share() const noexcept;
  /// Shares of the same time that a stage was busy, added up batch by batch. Not above 1.
  [[nodiscard]] double transfer_share() const noexcept;
  [[nodiscard]] double kernel_share() const noexcept;
  [[nodiscard]] double gather_share() const noexcept;
  [[nodiscard]] double loader_share() const noexcept;  ///< of waiting for the wrapped loader
  [[nodiscard]] double transport_seconds() const noexcept { return write_seconds + receive_seconds; }
  /// The wait for first batches of epochs, without the time that making such a batch takes.
  [[nodiscard]] double start_seconds() const noexcept;
  /// The rest of the stalls, which no stage explains. A batch was handed from thread to thread, waited for a
  /// free slot, or its copies were being launched.
  [[nodiscard]] double stall_other_seconds() const noexcept;

  [[nodiscard]] FeedLimit limited_by() const noexcept;
  /// The stage without which the wrapped loader would be fastest: fetch, collate, transport or pin. `loader`
  /// if the stages that were timed explain less than half of the wait for it, or its start is more than half.
  [[nodiscard]] FeedLimit slow_stage() const noexcept;
  /// Says what sets the pace, with figures of the table, and then what to do next. The first sentence ends at
  /// the first full stop before a space and can stand alone.
  [[nodiscard]] std::string sentence() const;
};

/// Prints the account as a table of lines, then the sentence and a newline. docs/statistics.md explains each.
std::ostream& operator<<(std::ostream& out, const FeedStatistics& statistics);

/// When the stages of one batch began and ended, in seconds since the account was opened. All are on one
/// clock: the device's times are mapped to the host's clock, which is good to some tens of microseconds.
struct BatchTimes {
  std::uint64_t epoch = 0;
  std::uint64_t batch = 0;  ///< of the epoch
  std::uint64_t samples = 0;
  std::uint64_t link_bytes = 0;
  /// When the wrapped loader was asked during the request for this batch. If batches are read ahead, it was
  /// asked for a later one. Both 0 for penstock's own loader.
  double loader_begin = 0;
  double loader_end = 0;
  /// When the host gathered; both 0 if it did not. For a wrapped loader: when its newest batch was sent.
  double gather_begin = 0;
  double gather_end = 0;
  double transfer_begin = 0;  ///< early enough for the bytes to cross at the link's ceiling
  double transfer_end = 0;
  double asked = 0;    ///< when the consumer's stream came to the request for the batch
  double arrived = 0;  ///< when the consumer's stream went on
};

/// Seconds that each stage ran while the consumer waited for a batch. In all they may be less than the stall.
struct StallParts {
  double on_loader = 0;  ///< the wrapped loader was asked for a batch
  double on_device = 0;  ///< the batch was transferred, or gathered on the device if all of it is resident
  double on_host = 0;    ///< the host gathered, and nothing of the batch was in flight
};
[[nodiscard]] StallParts stall_parts(const BatchTimes& times) noexcept;

}  // namespace penstock
