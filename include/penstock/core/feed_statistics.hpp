#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The part of a feed that sets the pace: the others wait for it.
enum class FeedLimit : std::uint8_t {
  unknown,    ///< too few batches were timed to tell
  consumer,   ///< your step: what the consumer does between two batches
  link,       ///< transfers between host and device
  gather,     ///< host threads that copy samples together
  device,     ///< kernels that gather samples which are on the device already
  residency,  ///< moving the resident part of the dataset to the device, which happens once
  batches,    ///< what each batch costs whatever its size
};

/// The names above, as strings.
[[nodiscard]] std::string_view feed_limit_name(FeedLimit limit) noexcept;

/// What a feed did, and where its time went. Seconds are wall time; those of a stage overlap those of the
/// others, which is what a feed is for. Those marked (device) come from the device's clock and cover the
/// batches counted by `timed_batches`: work that has not ended yet is not in them.
struct FeedStatistics {
  std::uint64_t epochs = 0;           ///< begun
  std::uint64_t batches = 0;          ///< given to the consumer
  std::uint64_t samples = 0;          ///< in them
  std::uint64_t delivered_bytes = 0;  ///< of them, in device memory, as the consumer reads them
  std::uint64_t link_bytes = 0;       ///< of them, as they crossed the link; less than delivered where fields
                                      ///< widen on arrival or are resident
  std::uint64_t resident_bytes = 0;   ///< of the dataset, kept in device memory
  double resident_seconds = 0;        ///< that moving those took, in the loader's first epoch

  double seconds = 0;            ///< between the first request for a batch and the end of the last one
  double gather_seconds = 0;     ///< while host threads gathered
  double slot_wait_seconds = 0;  ///< while a batch could not be begun for want of a free slot: backpressure
  std::uint64_t timed_batches = 0;
  double transfer_seconds = 0;  ///< while copies ran, or kernels that read over the link (device); not less
                                ///< than the bytes take at the ceiling
  double kernel_seconds = 0;    ///< while kernels ran that gather what is resident (device)
  double compute_seconds =
      0;  ///< of the consumer's stream from one batch's arrival to the next request (device)
  double stall_seconds = 0;  ///< of the consumer's stream from a request to the batch's arrival (device)
  double exposed_transfer_seconds = 0;  ///< of the stalls, while that batch's transfer ran (device)
  double exposed_kernel_seconds = 0;  ///< of the stalls, while that batch was gathered on the device (device)
  double exposed_gather_seconds = 0;  ///< of the stalls, while host threads gathered that batch and nothing
                                      ///< of it was on its way

  double mean_ready = 0;  ///< batches ready or on their way when the consumer asked, on average
  std::size_t prefetch_depth = 0;
  std::size_t slots = 0;           ///< of the device ring now; it grows while a consumer keeps batches
  std::size_t ring_bytes = 0;      ///< of device memory in them
  double link_ceiling = 0;         ///< best measured bandwidth of the link in bytes per second; 0: unknown
  std::uint64_t sample_bytes = 0;  ///< of one sample as stored

  [[nodiscard]] double samples_per_second() const noexcept;
  /// 1e9 bytes per second over `seconds`.
  [[nodiscard]] double link_gbps() const noexcept;
  [[nodiscard]] double delivered_gbps() const noexcept;
  /// link_gbps over the ceiling; 0 where that is unknown.
  [[nodiscard]] double link_efficiency() const noexcept;
  /// GB/s over the link while transfers ran.
  [[nodiscard]] double transfer_gbps() const noexcept;
  /// Share of the consumer's stream's time that it waited, 0 to 1.
  [[nodiscard]] double stall_share() const noexcept;
  /// Share of the same time that a stage was busy, by the batch. Not above 1.
  [[nodiscard]] double transfer_share() const noexcept;
  [[nodiscard]] double kernel_share() const noexcept;
  [[nodiscard]] double gather_share() const noexcept;
  /// Of the stalls, what no stage explains: a batch was handed from thread to thread, waited for a free slot,
  /// or its copies were being launched.
  [[nodiscard]] double stall_other_seconds() const noexcept;

  [[nodiscard]] FeedLimit limited_by() const noexcept;
  /// Says what sets the pace, with figures of the table, and then what to do next. The first sentence, up to
  /// the first full stop before a space, is complete in itself.
  [[nodiscard]] std::string sentence() const;
};

/// The account as a table of lines, ending with the sentence and a newline. docs/statistics.md explains each.
std::ostream& operator<<(std::ostream& out, const FeedStatistics& statistics);

/// When the stages of one batch began and ended: seconds since the loader's first request, on one clock (the
/// device's is laid over the host's, which is good to some tens of microseconds).
struct BatchTimes {
  std::uint64_t epoch = 0;
  std::uint64_t batch = 0;  ///< of the epoch
  std::uint64_t samples = 0;
  std::uint64_t link_bytes = 0;
  double gather_begin = 0;  ///< host gather; both 0 where there was none
  double gather_end = 0;
  double transfer_begin = 0;
  double transfer_end = 0;
  double asked = 0;    ///< the consumer's stream came to where the batch was asked for
  double arrived = 0;  ///< and here it went on
};

}  // namespace penstock
