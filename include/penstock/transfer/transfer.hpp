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
  automatic,  ///< the engine chooses; a transfer itself never has this path
  direct,     ///< one asynchronous copy by the driver
  staged,     ///< through pinned slots; several threads fill or empty them while earlier slots cross the link
  packed,     ///< many pieces in one copy
};

/// "automatic", "direct", "staged", "packed".
[[nodiscard]] std::string_view transfer_path_name(TransferPath path) noexcept;

/// What a transfer did. Times are in seconds on the host's steady clock; 0 for parts that were not reached.
struct TransferReport {
  TransferPath path = TransferPath::automatic;
  CopyDirection direction = CopyDirection::h2d;
  std::size_t bytes = 0;
  std::size_t pieces = 0;
  std::size_t copies = 0;        ///< copies handed to the driver
  unsigned threads = 0;          ///< host threads that moved bytes; 0 for direct
  double host_copy_seconds = 0;  ///< in host copies, summed over threads
  double slot_wait_seconds = 0;  ///< of waiting for a slot, summed over threads
  double seconds = 0;            ///< from the request until the host saw it done
};

/// When a transfer's copies began and ended, in seconds on the device's clock.
struct TransferSpan {
  double begin = 0;
  double end = 0;
};

/// A handle of one requested movement of bytes. It may be copied, used on any thread and outlive the engine.
///
/// A transfer ends in one of three ways: done, failed, or cancelled. A failed or cancelled one no longer
/// touches either end, and its destination holds an unspecified mixture of old and new bytes. Every query and
/// wait below then throws, so that they are not taken for a result.
class Transfer {
 public:
  /// An empty transfer, which is done.
  Transfer() noexcept;

  /// True if the destination holds all bytes. Does not block. If the transfer failed, throws its DeviceError
  /// or OutOfMemory, or what its FillFunction threw. If it was cancelled, or its engine was destroyed first,
  /// throws Closed.
  [[nodiscard]] bool query() const;
  /// Blocks the host until the destination holds all bytes. Throws as query does.
  void synchronize() const;
  /// Blocks the host until the source is no longer read and may be changed or freed. Throws as query does.
  void synchronize_source() const;

  /// Makes later work on `stream` wait until a device destination holds all bytes, or a device source is no
  /// longer read. Blocks the host only while a staged transfer has chunks that the driver does not have yet.
  /// Parts of a direct one that the driver does not have yet are enqueued here, each to begin after the one
  /// before.
  /// If the destination is on the *host*, use synchronize. Throws as query does.
  void enqueue_wait(const Stream& stream) const;

  /// Asks the transfer to stop. True if it will end as cancelled. False if it is done, has failed, or is
  /// entirely with the driver and so runs to its end. Does not block: synchronize to see the end.
  bool cancel() const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] TransferPath path() const noexcept;
  [[nodiscard]] TransferReport report() const;
  /// When the copies ran, measured from `origin`, a finished event with EventTiming::on. Nullopt unless
  /// CopyOptions::timed was set, or if the transfer failed or its beginning could not be marked. Does not
  /// block. Throws DeviceError if the device is not done yet.
  [[nodiscard]] std::optional<TransferSpan> span_since(const Event& origin) const;

 private:
  friend class TransferEngineImpl;
  friend class GroupEngineImpl;
  explicit Transfer(std::shared_ptr<class TransferState> state) noexcept;

  std::shared_ptr<class TransferState> state_;
};

}  // namespace penstock
