#include "loader/copy_pacer.hpp"

#include <penstock/core/pause.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

CopyPacer::CopyPacer(const Device& device, const DeviceRing& ring, std::size_t batch_bytes,
                     std::size_t batches_ahead, std::size_t pieces)
    : ring_(ring),
      part_bytes_(device.info().tuning.copied_part_bytes),
      most_bytes_(device.info().tuning.queued_copy_bytes),
      paces_(batch_bytes * batches_ahead > most_bytes_) {
  part_.reserve(pieces + 1);
  if (!paces_) return;
  // Parts at the end of a field may be small. Twice as many as of full ones is enough for most batches.
  const std::size_t parts = 2 * std::max<std::size_t>(most_bytes_ / part_bytes_, 1);
  for (std::size_t i = 0; i < parts; ++i) idle_.push_back(device.create_event());
}

void CopyPacer::copy(const Stream& stream, std::byte* destination, const std::byte* source,
                     std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t part = paces_ ? std::min(bytes - begin, part_bytes_) : bytes;
    enqueue(stream, part,
            [&] { stream.copy(destination + begin, source + begin, part, CopyDirection::h2d); });
    begin += part;
  }
}

void CopyPacer::copy_each(const Stream& stream, std::span<const CopyPiece> pieces) {
  if (!paces_) return stream.copy_each(pieces, CopyDirection::h2d);
  part_.clear();
  part_size_ = 0;
  for (CopyPiece piece : pieces) {
    // A sample is not cut, since each copy has a cost; samples that adjoin may be.
    if (part_size_ > 0 && part_size_ + piece.bytes > part_bytes_) enqueue_part(stream);
    while (piece.bytes > part_bytes_) {
      part_.push_back({piece.source, piece.destination, part_bytes_});
      part_size_ = part_bytes_;
      enqueue_part(stream);
      piece.source = static_cast<const std::byte*>(piece.source) + part_bytes_;
      piece.destination = static_cast<std::byte*>(piece.destination) + part_bytes_;
      piece.bytes -= part_bytes_;
    }
    part_.push_back(piece);
    part_size_ += piece.bytes;
  }
  if (part_size_ > 0) enqueue_part(stream);
}

void CopyPacer::enqueue_part(const Stream& stream) {
  enqueue(stream, part_size_, [&] { stream.copy_each(part_, CopyDirection::h2d); });
  part_.clear();
  part_size_ = 0;
}

void CopyPacer::enqueue(const Stream& stream, std::size_t bytes, FunctionRef<void()> copies) {
  if (!paces_) return copies();
  nap_until([&] { return has_room(bytes) || ring_.is_in_a_hurry(); });
  copies();
  // In a hurry there may be no idle event. The parts that are not marked are not counted.
  if (idle_.empty()) return;
  idle_.back().record(stream);
  queued_.push_back({std::move(idle_.back()), bytes});
  idle_.pop_back();
  queued_bytes_ += bytes;
}

bool CopyPacer::has_room(std::size_t bytes) {
  while (!queued_.empty() && queued_.front().done.query()) {
    queued_bytes_ -= queued_.front().bytes;
    idle_.push_back(std::move(queued_.front().done));
    queued_.pop_front();
  }
  return queued_.empty() || (!idle_.empty() && queued_bytes_ + bytes <= most_bytes_);
}

}  // namespace penstock
