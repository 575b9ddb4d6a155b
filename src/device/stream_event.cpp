#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/event.hpp>
#include <penstock/device/stream.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace penstock {

Stream::Stream(std::shared_ptr<Backend> backend, StreamPriority priority)
    : backend_(std::move(backend)), handle_(backend_->stream_create(priority)), owned_(true) {}

Stream::Stream(std::shared_ptr<Backend> backend, StreamHandle foreign) noexcept
    : backend_(std::move(backend)), handle_(foreign) {}

Stream::Stream(Stream&& other) noexcept
    : backend_(std::move(other.backend_)),
      handle_(std::exchange(other.handle_, nullptr)),
      owned_(std::exchange(other.owned_, false)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(handle_, other.handle_);
  std::swap(owned_, other.owned_);
  return *this;
}

Stream::~Stream() {
  if (owned_) backend_->stream_destroy(handle_);
}

bool Stream::query() const { return backend_->stream_query(handle_); }

void Stream::synchronize() const { backend_->stream_synchronize(handle_); }

void Stream::copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction) const {
  backend_->copy(destination, source, bytes, direction, handle_);
}

void Stream::fill(void* destination, std::uint8_t value, std::size_t bytes) const {
  backend_->fill(destination, value, bytes, handle_);
}

void Stream::copy_each(std::span<const CopyPiece> pieces, CopyDirection direction) const {
  backend_->copy_each(pieces, direction, handle_);
}

void Stream::copy_pieces(const CopyPiece* pieces, std::size_t count) const {
  backend_->copy_pieces(pieces, count, handle_);
}

void Stream::gather(const GatherRequest& request) const { backend_->gather(request, handle_); }

void Stream::split_rows(const SplitRequest& request) const { backend_->split_rows(request, handle_); }

void Stream::fill_order(const OrderRequest& request) const { backend_->fill_order(request, handle_); }

void Stream::hash(const HashRequest& request) const {
  const auto is_aligned = [](const void* data) {
    return data != nullptr && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  if (!is_aligned(request.source) || !is_aligned(request.sums)) {
    throw InvalidArgument("this memory cannot be hashed: it and its sums begin at multiples of 16 bytes");
  }
  backend_->hash(request, handle_);
}

std::size_t HashRequest::sum_count(std::uint64_t bytes) noexcept {
  // One for each warp of blocks of 8. Each block has 128 KiB or more; 256 of them fill a GPU.
  return 8 * std::clamp<std::uint64_t>(bytes >> 17, 1, 256);
}

void Stream::wait_value(const std::uint32_t* word, std::uint32_t value) const {
  backend_->stream_wait_value(handle_, word, value);
}

void Stream::occupy(double seconds) const { backend_->stream_occupy(handle_, seconds); }

Event Stream::create_event(EventTiming timing, EventWait wait) const { return Event(backend_, timing, wait); }

Event::Event(std::shared_ptr<Backend> backend, EventTiming timing, EventWait wait)
    : backend_(std::move(backend)), handle_(backend_->event_create(timing, wait)) {}

Event::Event(Event&& other) noexcept
    : backend_(std::move(other.backend_)), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ != nullptr) backend_->event_destroy(handle_);
}

void Event::record(const Stream& stream) { backend_->event_record(handle_, stream.native()); }

bool Event::query() const { return backend_->event_query(handle_); }

void Event::synchronize() const { backend_->event_synchronize(handle_); }

void Event::enqueue_wait(const Stream& stream) const {
  stream.backend_->stream_wait_event(stream.native(), handle_);
}

bool Event::same_device(const Stream& stream) const noexcept { return backend_ == stream.backend_; }

double Event::seconds_since(const Event& begin) const {
  return backend_->event_elapsed(begin.handle_, handle_);
}

}  // namespace penstock
