#pragma once

#include <penstock/device/backend.hpp>

#include <concepts>
#include <memory>

namespace penstock {

class Stream;

/// Something a stream can wait for: an Event, a Transfer.
template <typename T>
concept Waitable = requires(const T& thing, const Stream& stream) {
  { thing.enqueue_wait(stream) };
};

/// An in-order queue of work on one device. Move-only; its destructor lets queued work finish without
/// blocking. Thread-safe: any thread may enqueue; order between threads is the order of the calls. A
/// moved-from stream may only be destroyed or assigned to.
class Stream {
 public:
  /// Owns a new stream.
  Stream(std::shared_ptr<Backend> backend, StreamPriority priority);
  /// Views a foreign one, which must outlive this object.
  Stream(std::shared_ptr<Backend> backend, StreamHandle foreign) noexcept;
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  /// Makes later work on this stream wait for `thing`. An event does not block the host; see Transfer for
  /// when it does. Throws DeviceError.
  void wait(const Waitable auto& thing) const { thing.enqueue_wait(*this); }

  /// True when all work enqueued so far is done. Does not block. Throws DeviceError.
  [[nodiscard]] bool query() const;
  /// Blocks the host until all work enqueued so far is done. Throws DeviceError.
  void synchronize() const;

  [[nodiscard]] StreamHandle native() const noexcept { return handle_; }
  [[nodiscard]] const std::shared_ptr<Backend>& backend() const noexcept { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
  StreamHandle handle_ = nullptr;
  bool owned_ = false;
};

}  // namespace penstock
