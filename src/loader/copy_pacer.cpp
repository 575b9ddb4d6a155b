#include "loader/copy_pacer.hpp"

#include "core/shared/pause.hpp"

#include <algorithm>

namespace penstock {

namespace {

/// The link has time to spare if a batch took this many times as long as it must.
constexpr double kSpare = 1.5;

}  // namespace

CopyPacer::CopyPacer(const Device& device, const DeviceRing& ring, const Limits& limits)
    : ring_(ring),
      large_part_(device.info().tuning.large_part_bytes),
      small_part_(device.info().tuning.small_part_bytes),
      link_rate_(limits.link_rate),
      paces_(limits.batch_bytes * limits.batches > 2 * small_part_),
      begun_(device.create_event()),
      turns_(device),
      part_bytes_(large_part_) {
  part_.reserve(limits.pieces + 1);
}

void CopyPacer::begin(const DeviceSlot& slot, const Stream& stream, const Stream& other) {
  turns_.begin(stream, other);
  if (!paces_) return;
  const auto now = Clock::now();
  if (began_) {
    host_paces_ = turns_.are_done() && ring_.is_unused(slot);
    const double took = std::chrono::duration<double>(now - *began_).count();
    part_bytes_ = took * link_rate_ > kSpare * static_cast<double>(batch_bytes_) ? small_part_ : large_part_;
  }
  began_ = now;
  batch_bytes_ = 0;
  begun_.record(stream);
  other.wait(begun_);
}

void CopyPacer::copy(std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t most = paces_ ? even_part(bytes) : bytes;
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t part = std::min(bytes - begin, most);
    enqueue(part, [&](const Stream& stream) {
      stream.copy(destination + begin, source + begin, part, CopyDirection::h2d);
    });
    begin += part;
  }
}

void CopyPacer::copy_each(std::span<const CopyPiece> pieces) {
  if (!paces_) return turns_.stream().copy_each(pieces, CopyDirection::h2d);
  part_.clear();
  part_size_ = 0;
  std::size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  const std::size_t even = even_part(bytes);
  for (CopyPiece piece : pieces) {
    // Each copy has a cost, so a sample is cut only if it is larger than a part, or adjoins others.
    if (part_size_ >= even || (part_size_ > 0 && part_size_ + piece.bytes > part_bytes_)) enqueue_part();
    while (piece.bytes > part_bytes_) {
      part_.push_back({piece.source, piece.destination, even});
      part_size_ = even;
      enqueue_part();
      piece.source = static_cast<const std::byte*>(piece.source) + even;
      piece.destination = static_cast<std::byte*>(piece.destination) + even;
      piece.bytes -= even;
    }
    part_.push_back(piece);
    part_size_ += piece.bytes;
  }
  if (part_size_ > 0) enqueue_part();
}

std::size_t CopyPacer::even_part(std::size_t bytes) const noexcept {
  const std::size_t parts = std::max<std::size_t>(1, (bytes + part_bytes_ - 1) / part_bytes_);
  return (bytes + parts - 1) / parts;
}

void CopyPacer::enqueue_part() {
  enqueue(part_size_, [&](const Stream& stream) { stream.copy_each(part_, CopyDirection::h2d); });
  part_.clear();
  part_size_ = 0;
}

void CopyPacer::enqueue(std::size_t bytes, FunctionRef<void(const Stream&)> copies) {
  if (!paces_) return copies(turns_.stream());
  nap_until(
      [&] { return turns_.may_enqueue() || (host_paces_ && ring_.is_awaited()) || ring_.is_in_a_hurry(); });
  turns_.enqueue(copies);
  batch_bytes_ += bytes;
}

}  // namespace penstock
