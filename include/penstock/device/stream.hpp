#pragma once

#include <penstock/device/event.hpp>
#include <penstock/device/memory_kind.hpp>
#include <penstock/device/requests.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock {

class Stream;

enum class StreamPriority : std::uint8_t { normal, high };
/// CUstream on cuda. Null is the device's default stream.
using StreamHandle = void*;

/// Something a stream can wait for: an Event, a Transfer.
template <typename T>
concept Waitable = requires(const T& thing, const Stream& stream) {
  { thing.enqueue_wait(stream) };
};

/// An in-order queue of work on one device, made by Device. Move-only; its destructor lets queued work finish
/// without blocking. Thread-safe: any thread may enqueue; order between threads is the order of the calls. A
/// moved-from stream may only be destroyed or assigned to.
///
/// All calls throw DeviceError, also if earlier asynchronous work failed; in a forked child, PENSTOCK_FORKED.
class Stream {
 public:
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  /// Makes later work on this stream wait for `thing`. An Event does not block the host; a Transfer may.
  void wait(const Waitable auto& thing) const { thing.enqueue_wait(*this); }
  /// True if all work enqueued so far is done. Does not block.
  [[nodiscard]] bool query() const;
  /// Blocks the host until all work enqueued so far is done.
  void synchronize() const;

  // Work, enqueued. The host blocks only if an end of a copy is pageable: such a copy behaves as the driver's
  // own. The caller keeps all memory that a call names until the work is done.

  /// Copies `bytes`. Throws DeviceError if the direction and the kinds of memory do not agree. Either end of
  /// a d2d copy, or both, may be memory of an enabled peer (Device::enable_peer). Only this stream orders the
  /// copy: let it wait for events of the peer's streams, and them for its events. If the peer is not enabled,
  /// the copy fails, or a driver takes it through host memory.
  void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction) const;
  /// Sets each byte of device memory, or of locked host memory, to `value`.
  void fill(void* destination, std::uint8_t value, std::size_t bytes) const;
  /// Copies pieces of locked host memory to the device or back. The copy engines do it and take no
  /// multiprocessor from other kernels. Pieces are copied in any order. `pieces` is read at the call.
  void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction) const;
  /// Copies `count` pieces by one kernel. The device reaches the table `pieces`.
  void copy_pieces(const CopyPiece* pieces, std::size_t count) const;
  /// Picks rows out of an array. An index past `source_rows` gives a row of zero bytes. Throws
  /// InvalidArgument if the request is wrong.
  void gather(const GatherRequest& request) const;
  /// Writes each value of gathered rows to its own column. Throws InvalidArgument if the request is wrong;
  /// its tables are not checked.
  void split_rows(const SplitRequest& request) const;
  /// Computes a run's indices on the device, as SampleRun::fill does. Throws InvalidArgument for a wrong
  /// request.
  void fill_order(const OrderRequest& request) const;
  /// Hashes memory of the device. Writes all sums. Throws InvalidArgument for null or misaligned addresses.
  void hash(const HashRequest& request) const;

  // For measurements and tests.

  /// Makes later work wait until `*word >= value` (compared as a cyclic 32-bit difference). `word` lies in
  /// locked memory. It must not be set by work queued behind the wait.
  void wait_value(const std::uint32_t* word, std::uint32_t value) const;
  /// Keeps the stream (and on a GPU, one multiprocessor) busy for `seconds`, in place of a kernel.
  void occupy(double seconds) const;

  /// An event of this stream's device.
  [[nodiscard]] Event create_event(EventTiming timing = EventTiming::off,
                                   EventWait wait = EventWait::poll) const;
  [[nodiscard]] StreamHandle native() const noexcept { return handle_; }

 private:
  friend class Device;
  friend class Event;
  /// Owns a new stream.
  Stream(std::shared_ptr<Backend> backend, StreamPriority priority);
  /// Views a foreign one, which must outlive this object.
  Stream(std::shared_ptr<Backend> backend, StreamHandle foreign) noexcept;

  std::shared_ptr<Backend> backend_;
  StreamHandle handle_ = nullptr;
  bool owned_ = false;
};

}  // namespace penstock
