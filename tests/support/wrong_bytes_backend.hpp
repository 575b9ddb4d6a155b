#pragma once

#include <penstock/device/backend.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace penstock::testing {

/// Wraps a backend and spoils some copies: it changes one byte after the copy (of the host backend only), or
/// does not copy at all. Everything else passes through.
class WrongBytesBackend final : public Backend {
 public:
  enum class Harm { none, change, drop };
  using Choice = std::function<Harm(std::size_t bytes, CopyDirection direction)>;

  explicit WrongBytesBackend(std::shared_ptr<Backend> inner, Choice choice = {})
      : inner_(std::move(inner)), choice_(std::move(choice)) {}

  const DeviceInfo& info() const noexcept override { return inner_->info(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  ContextHandle context() const noexcept override { return inner_->context(); }
  bool can_reach(const Backend& peer) const override { return inner_->can_reach(peer); }
  void enable_peer(const Backend& peer) override { inner_->enable_peer(peer); }
  StreamHandle stream_create(StreamPriority priority) override { return inner_->stream_create(priority); }
  void stream_destroy(StreamHandle stream) noexcept override { inner_->stream_destroy(stream); }
  bool stream_query(StreamHandle stream) override { return inner_->stream_query(stream); }
  void stream_synchronize(StreamHandle stream) override { inner_->stream_synchronize(stream); }
  void stream_wait_event(StreamHandle stream, EventHandle event) override {
    inner_->stream_wait_event(stream, event);
  }
  void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) override {
    inner_->stream_wait_value(stream, word, value);
  }
  void stream_occupy(StreamHandle stream, double seconds) override { inner_->stream_occupy(stream, seconds); }
  EventHandle event_create(EventTiming timing, EventWait wait) override {
    return inner_->event_create(timing, wait);
  }
  void event_destroy(EventHandle event) noexcept override { inner_->event_destroy(event); }
  void event_record(EventHandle event, StreamHandle stream) override { inner_->event_record(event, stream); }
  bool event_query(EventHandle event) override { return inner_->event_query(event); }
  void event_synchronize(EventHandle event) override { inner_->event_synchronize(event); }
  double event_elapsed(EventHandle begin, EventHandle end) override {
    return inner_->event_elapsed(begin, end);
  }
  void* device_allocate(std::size_t bytes) override { return inner_->device_allocate(bytes); }
  void* device_allocate_shared(std::size_t bytes) override { return inner_->device_allocate_shared(bytes); }
  void device_free(void* data) noexcept override { inner_->device_free(data); }
  PeerMemoryHandle memory_export(const void* data) const override { return inner_->memory_export(data); }
  void* memory_import(const PeerMemoryHandle& handle) override { return inner_->memory_import(handle); }
  void memory_close(void* imported) noexcept override { inner_->memory_close(imported); }
  void host_register(void* data, std::size_t bytes, bool read_only) override {
    inner_->host_register(data, bytes, read_only);
  }
  void host_unregister(void* data) noexcept override { inner_->host_unregister(data); }
  void* host_allocate(std::size_t bytes) override { return inner_->host_allocate(bytes); }
  void host_free(void* data) noexcept override { inner_->host_free(data); }
  MemoryKind kind_of(const void* data) const override { return inner_->kind_of(data); }
  bool owns(const void* data) const override { return inner_->owns(data); }
  bool is_open_to_peers(const void* data) const override { return inner_->is_open_to_peers(data); }
  void* device_address(void* locked) const override { return inner_->device_address(locked); }

  void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
            StreamHandle stream) override {
    Harm harm = choice_ ? choice_(bytes, direction) : Harm::none;
    if (direction == CopyDirection::d2d && harms_d2d) harm = harms_d2d(destination, source);
    if (harm != Harm::drop) inner_->copy(destination, source, bytes, direction, stream);
    if (harm == Harm::change) change(destination, source, bytes / 2, stream);
  }
  void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) override {
    inner_->fill(destination, value, bytes, stream);
  }
  void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) override {
    for (const CopyPiece& piece : pieces) {
      copy(piece.destination, piece.source, piece.bytes, direction, stream);
    }
  }
  void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) override {
    inner_->copy_pieces(pieces, count, stream);
  }
  void gather(const GatherRequest& request, StreamHandle stream) override {
    inner_->gather(request, stream);
    if (!harms_gather || !harms_gather(request)) return;
    // One byte may be right by chance: a widened value has none of its source's, and the rows are drawn at
    // random.
    const std::byte other = static_cast<const std::byte*>(request.source)[0] ^ std::byte{0x10};
    inner_->fill(request.destination, std::to_integer<std::uint8_t>(other), 16, stream);
  }
  void split_rows(const SplitRequest& request, StreamHandle stream) override {
    inner_->split_rows(request, stream);
  }
  void fill_order(const OrderRequest& request, StreamHandle stream) override {
    inner_->fill_order(request, stream);
  }
  void hash(const HashRequest& request, StreamHandle stream) override { inner_->hash(request, stream); }
  std::unique_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) override {
    return inner_->make_jpeg_decoder(options);
  }

  /// What to do to copies between device memory, by their ends; empty: what was chosen for all.
  std::function<Harm(const void* destination, const void* source)> harms_d2d;
  /// True for the gathers to spoil; empty: none.
  std::function<bool(const GatherRequest& request)> harms_gather;

 private:
  /// Enqueues another byte than the source has there: the host reads the host device's memory.
  void change(void* destination, const void* source, std::size_t at, StreamHandle stream) {
    auto* const target = static_cast<std::byte*>(destination) + at;
    const std::byte other = static_cast<const std::byte*>(source)[at] ^ std::byte{0x10};
    const MemoryKind kind = inner_->kind_of(target);
    if (kind == MemoryKind::pageable) {
      *target = other;  // the copy was done when it returned
    } else if (kind == MemoryKind::device && !inner_->owns(target)) {
      const auto* values = static_cast<const std::byte*>(source);  // a peer's memory takes only copies
      while (*values == static_cast<const std::byte*>(source)[at]) ++values;
      inner_->copy(target, values, 1, CopyDirection::d2d, stream);
    } else {
      inner_->fill(target, std::to_integer<std::uint8_t>(other), 1, stream);
    }
  }

  std::shared_ptr<Backend> inner_;
  Choice choice_;
};

}  // namespace penstock::testing
