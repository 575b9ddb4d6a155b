#pragma once

#include <penstock/device/event.hpp>
#include <penstock/device/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace penstock {

/// The way a transfer goes.
enum class TransferPath : std::uint8_t {
  automatic,  ///< the engine chooses; never the path of a transfer that was made
  direct,     ///< one asynchronous copy by the driver
  staged,  ///< through pinned slots, filled or emptied by several threads while earlier slots are on the wire
  packed,  ///< many pieces in one copy
};

/// "automatic", "direct", "staged", "packed".
[[nodiscard]] std::string_view transfer_path_name(TransferPath path) noexcept;

/// What a transfer did. Times are of the host's steady clock, in seconds; those of parts not reached are 0.
struct TransferReport {
  TransferPath path = TransferPath::automatic;
  CopyDirection direction = CopyDirection::h2d;
  std::size_t bytes = 0;
  std::size_t pieces = 0;
  std::size_t copies = 0;        ///< copies handed to the driver
  unsigned threads = 0;          ///< host threads that moved bytes; 0 for direct
  double host_copy_seconds = 0;  ///< spent in host copies, summed over threads
  double slot_wait_seconds = 0;  ///< spent waiting for a slot, summed over threads
  double seconds = 0;            ///< from the request until it was seen to be done
};

/// When a transfer's copies began and ended, in seconds on the device's clock.
struct TransferSpan {
  double begin = 0;
  double end = 0;
};

/// One requested movement of bytes: a handle that may be copied, asked from any thread, and outlive the
/// engine.
///
/// A transfer ends in one of three ways: done, failed, or cancelled. A failed or cancelled one has stopped
/// touching both ends, and its destination holds an unspecified mixture of old and new bytes: never taken for
/// a result, since every question below then throws.
class Transfer {
 public:
  /// A transfer of nothing, which is done.
  Transfer() noexcept;

  /// True when the destination holds all bytes. Does not block. Throws what went wrong: DeviceError,
  /// OutOfMemory, or Closed for a transfer that was cancelled or whose engine was destroyed first.
  [[nodiscard]] bool query() const;
  /// Blocks the host until the destination holds all bytes. Throws as query does.
  void synchronize() const;
  /// Blocks the host until the source is not read any more, and may be changed or freed. Throws as query
  /// does.
  void synchronize_source() const;

  /// Makes later work on `stream` wait until a device destination holds all bytes, or a device source is not
  /// read any more. Blocks the host only while a staged transfer still has chunks that were not handed to the
  /// driver. Work that needs a *host* destination uses synchronize. Throws as query does.
  void enqueue_wait(const Stream& stream) const;

  /// Asks the transfer to stop. True when it will end as cancelled; false when it is done, has failed, or is
  /// entirely with the driver already, and so runs to its end. Does not block: synchronize to see the end.
  bool cancel() const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] TransferPath path() const noexcept;
  [[nodiscard]] TransferReport report() const;
  /// Of a transfer that was asked for with CopyOptions::timed, and whose work on the device is done: its time
  /// since `origin`, which keeps time and is done. Nullopt for other transfers, those that failed, and those
  /// whose beginning could not be marked. Does not block. Throws DeviceError if the device is not done yet.
  [[nodiscard]] std::optional<TransferSpan> span_since(const Event& origin) const;

 private:
  friend class TransferEngineImpl;
  explicit Transfer(std::shared_ptr<class TransferState> state) noexcept;

  std::shared_ptr<class TransferState> state_;
};

}  // namespace penstock
