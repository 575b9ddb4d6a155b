#include "transfer/packed_plan.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace penstock {

namespace {

// The bytes behind a device end, up to the next multiple of this, belong to nobody. That is the documented
// reach of a gap, and every device allocator leaves as much between two allocations.
constexpr std::size_t kGapAlignment = 256;
// Alignment of offsets if a kernel gathers or scatters: the size of its widest access.
constexpr std::size_t kScatterAlignment = 16;
constexpr std::size_t kFewRuns = 4;

bool adjoins(const std::byte* end, const std::byte* next) {
  return next >= end && reinterpret_cast<std::uintptr_t>(next) <=
                            align_up(reinterpret_cast<std::uintptr_t>(end), kGapAlignment);
}

}  // namespace

PackedLayout PackedLayout::of(std::span<const std::size_t> piece_bytes, std::size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    throw InvalidArgument(fmt::format("alignment {} is not a power of two", alignment));
  }
  PackedLayout layout;
  layout.offsets.reserve(piece_bytes.size());
  for (const std::size_t bytes : piece_bytes) {
    layout.offsets.push_back(layout.bytes);
    if (bytes > std::numeric_limits<std::size_t>::max() - layout.bytes - alignment) {
      throw InvalidArgument("the pieces together have more bytes than can be addressed; copy fewer at once");
    }
    layout.bytes = align_up(layout.bytes + bytes, alignment);
  }
  return layout;
}

PackedPlan::PackedPlan(std::span<const TransferPiece> pieces, CopyDirection direction,
                       std::size_t shortest_run) {
  pieces_.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const TransferPiece& piece = pieces[i];
    if (piece.bytes == 0) continue;
    if (piece.source == nullptr || piece.destination == nullptr) {
      throw InvalidArgument(fmt::format("piece {} of {} has {} and a null {}", i, pieces.size(),
                                        format_bytes(piece.bytes),
                                        piece.source == nullptr ? "source" : "destination"));
    }
    pieces_.push_back(piece);
    payload_bytes_ += piece.bytes;
  }
  check_overlap();
  if (direction == CopyDirection::d2d) {
    device_side_ = DeviceSide::scatter;
  } else {
    lay_out(direction, shortest_run);
  }
}

void PackedPlan::check_overlap() const {
  const auto before = [](const TransferPiece& a, const TransferPiece& b) {
    return a.destination < b.destination;
  };
  std::vector<TransferPiece> sorted;
  std::span<const TransferPiece> ordered = pieces_;
  if (!std::is_sorted(pieces_.begin(), pieces_.end(), before)) {
    sorted = pieces_;
    std::sort(sorted.begin(), sorted.end(), before);
    ordered = sorted;
  }
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    if (ordered[i - 1].destination + ordered[i - 1].bytes > ordered[i].destination) {
      throw InvalidArgument(
          fmt::format("the destinations of two pieces overlap at {}; what would arrive there is "
                      "not defined",
                      static_cast<const void*>(ordered[i].destination)));
    }
  }
}

void PackedPlan::lay_out(CopyDirection direction, std::size_t shortest_run) {
  const auto device_end = [direction](const TransferPiece& piece) {
    return direction == CopyDirection::h2d ? piece.destination : const_cast<std::byte*>(piece.source);
  };
  offsets_.reserve(pieces_.size());
  for (const TransferPiece& piece : pieces_) {
    std::byte* device = device_end(piece);
    if (runs_.empty() || !adjoins(runs_.back().device + runs_.back().image.bytes(), device)) {
      const std::size_t begin = align_up(image_bytes_, kScatterAlignment);
      runs_.push_back({device, {begin, begin}});
    }
    DeviceRun& run = runs_.back();
    offsets_.push_back(run.image.begin + static_cast<std::size_t>(device - run.device));
    run.image.end = offsets_.back() + piece.bytes;
    image_bytes_ = run.image.end;
  }
  if (runs_.size() > kFewRuns && image_bytes_ / runs_.size() < shortest_run)
    device_side_ = DeviceSide::scatter;
}

std::size_t PackedPlan::first_piece(std::size_t image_offset) const noexcept {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), image_offset);
  return after == offsets_.begin() ? 0 : static_cast<std::size_t>(after - offsets_.begin()) - 1;
}

ImageRange PackedPlan::round(std::size_t begin, std::size_t window) const {
  if (image_bytes_ - begin <= window) return {begin, image_bytes_};
  if (device_side_ == DeviceSide::runs) return {begin, begin + window};
  const std::size_t first = first_piece(begin);
  const std::size_t last = std::max(first_piece(begin + window), first + 1);
  return {begin, last < pieces_.size() ? offsets_[last] : image_bytes_};
}

void PackedPlan::pack(ImageRange range, std::byte* image, StoreKind stores) const {
  for_each_part(range, [&](const TransferPiece& piece, std::size_t from, std::size_t to, std::size_t bytes) {
    copy_bytes(image + to, piece.source + from, bytes, stores);
  });
}

void PackedPlan::unpack(ImageRange range, const std::byte* image, StoreKind stores) const {
  for_each_part(range, [&](const TransferPiece& piece, std::size_t to, std::size_t from, std::size_t bytes) {
    copy_bytes(piece.destination + to, image + from, bytes, stores);
  });
}

}  // namespace penstock
