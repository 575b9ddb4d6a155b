#pragma once

#include <penstock/core/sample_run.hpp>
#include <penstock/device/stream.hpp>

#include <cstddef>
#include <cstdint>

namespace penstock {

/// The indices of batches whose work is on one stream, computed on the device for several batches at once. To
/// launch a kernel costs the host some µs, which is much of what a small batch costs. One thread at a time.
class OrderAhead {
 public:
  /// `indices`: device memory for `room` indices.
  OrderAhead(std::uint64_t* indices, std::size_t room) noexcept : indices_(indices), room_(room) {}

  /// The device's address of the indices of `batch`, of `epoch`, for work that is enqueued on `stream` from
  /// here on. They stay until the batch of a later call is not among those that were computed. The stream is
  /// the same in all calls. Does not block the host. Throws DeviceError.
  [[nodiscard]] const std::uint64_t* order(const SampleRun& batch, std::uint64_t epoch, const Stream& stream);

 private:
  [[nodiscard]] bool has(const SampleRun& batch, std::uint64_t epoch) const noexcept;

  std::uint64_t* const indices_;
  const std::size_t room_;
  SampleRun ahead_;  ///< whose indices there are
  std::uint64_t epoch_ = 0;
};

}  // namespace penstock
