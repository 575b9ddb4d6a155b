#pragma once

#include <penstock/device/device_info.hpp>
#include <penstock/device/event.hpp>
#include <penstock/device/jpeg_decoder.hpp>
#include <penstock/device/memory_kind.hpp>
#include <penstock/device/requests.hpp>
#include <penstock/device/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

/// For those who implement or decorate a device. Callers use Device, Stream and Event, whose functions call
/// the entries here. The contracts stand there; this file adds only rules for implementations.
namespace penstock {

/// CUcontext on cuda.
using ContextHandle = void*;

/// Everything penstock asks of a device. No entry is optional, and entries described as enqueued are never
/// synchronous. All entries are thread-safe. All but the noexcept ones throw DeviceError, also if earlier
/// asynchronous work failed. In a child of fork they throw a DeviceError named PENSTOCK_FORKED, and the
/// noexcept ones do nothing.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual const DeviceInfo& info() const noexcept = 0;
  [[nodiscard]] virtual DeviceMemory memory() const = 0;

  // Peers, which may be decorated: use only their info and context. Device calls can_reach only for a peer of
  // the same backend with another context, and enable_peer only if it can be reached.
  /// What peers know the device by. Devices that share their memory have the same.
  [[nodiscard]] virtual ContextHandle context() const noexcept = 0;
  [[nodiscard]] virtual bool can_reach(const Backend& peer) const = 0;
  virtual void enable_peer(const Backend& peer) = 0;

  // Streams. `destroy` lets queued work finish; it does not block.
  virtual StreamHandle stream_create(StreamPriority priority) = 0;
  virtual void stream_destroy(StreamHandle stream) noexcept = 0;
  [[nodiscard]] virtual bool stream_query(StreamHandle stream) = 0;
  virtual void stream_synchronize(StreamHandle stream) = 0;
  /// Later work on `stream` waits for the work that `event` last marked. A never recorded event is done.
  virtual void stream_wait_event(StreamHandle stream, EventHandle event) = 0;
  virtual void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) = 0;
  virtual void stream_occupy(StreamHandle stream, double seconds) = 0;

  // Events. `destroy` does not undo what streams were told to wait for.
  virtual EventHandle event_create(EventTiming timing, EventWait wait) = 0;
  virtual void event_destroy(EventHandle event) noexcept = 0;
  virtual void event_record(EventHandle event, StreamHandle stream) = 0;
  [[nodiscard]] virtual bool event_query(EventHandle event) = 0;
  virtual void event_synchronize(EventHandle event) = 0;
  /// Seconds between two recorded, finished events made with EventTiming::on; throws otherwise.
  [[nodiscard]] virtual double event_elapsed(EventHandle begin, EventHandle end) = 0;

  // Memory. Device has the same functions with the words of their names swapped.
  virtual void* device_allocate(std::size_t bytes) = 0;
  virtual void* device_allocate_shared(std::size_t bytes) = 0;
  virtual void device_free(void* data) noexcept = 0;
  virtual void host_register(void* data, std::size_t bytes, bool read_only) = 0;
  virtual void host_unregister(void* data) noexcept = 0;
  virtual void* host_allocate(std::size_t bytes) = 0;
  virtual void host_free(void* data) noexcept = 0;
  [[nodiscard]] virtual MemoryKind kind_of(const void* data) const = 0;
  [[nodiscard]] virtual bool owns(const void* data) const = 0;
  [[nodiscard]] virtual bool is_open_to_peers(const void* data) const = 0;
  [[nodiscard]] virtual void* device_address(void* locked) const = 0;

  // Memory of other processes: see PeerMemoryHandle.
  [[nodiscard]] virtual PeerMemoryHandle memory_export(const void* data) const = 0;
  /// The begin of the allocation in which the memory lies.
  [[nodiscard]] virtual void* memory_import(const PeerMemoryHandle& handle) = 0;
  virtual void memory_close(void* imported) noexcept = 0;

  // Work, enqueued as Stream says. A request is copied before the call returns.
  virtual void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
                    StreamHandle stream) = 0;
  virtual void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) = 0;
  virtual void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) = 0;
  virtual void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) = 0;
  virtual void gather(const GatherRequest& request, StreamHandle stream) = 0;
  virtual void split_rows(const SplitRequest& request, StreamHandle stream) = 0;
  virtual void fill_order(const OrderRequest& request, StreamHandle stream) = 0;
  virtual void hash(const HashRequest& request, StreamHandle stream) = 0;

  /// Device keeps the backend as long as the decoder.
  [[nodiscard]] virtual std::unique_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) = 0;
};

}  // namespace penstock
