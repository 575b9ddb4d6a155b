#pragma once

#include "transfer/device_runs.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/device/memory_kind.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace penstock {

/// How pieces travel together. The *image* is the bytes that cross the link: the pieces side by side. If the
/// device's ends lie side by side, the image's offsets follow them; otherwise the plan chooses offsets.
class PackedPlan {
 public:
  /// How the image meets the device's ends.
  enum class DeviceSide : std::uint8_t {
    runs,     ///< few runs of adjoining pieces: a copy for each
    scatter,  ///< many small runs: one copy to or from scratch memory, and a kernel
  };

  /// Leaves out pieces of zero bytes. Many runs with a mean length below `shortest_run` are scattered. Throws
  /// InvalidArgument for null ends and for destinations that overlap.
  PackedPlan(std::span<const TransferPiece> pieces, CopyDirection direction,
             std::size_t shortest_run = DeviceTuning::Packing().shortest_run_bytes);

  [[nodiscard]] const std::vector<TransferPiece>& pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::size_t payload_bytes() const noexcept { return payload_bytes_; }
  [[nodiscard]] std::size_t image_bytes() const noexcept { return image_bytes_; }
  [[nodiscard]] DeviceSide device_side() const noexcept { return device_side_; }

  /// The part of the image from `begin` that one round of at most `window` bytes moves. If a kernel scatters,
  /// rounds end between pieces, even if one piece alone is larger than the window.
  [[nodiscard]] ImageRange round(std::size_t begin, std::size_t window) const;

  /// The offset of a piece in the image.
  [[nodiscard]] std::size_t offset(std::size_t piece) const noexcept { return offsets_[piece]; }
  /// First piece that reaches past `image_offset`.
  [[nodiscard]] std::size_t first_piece(std::size_t image_offset) const noexcept;

  /// Calls `part(piece, offset_in_piece, offset_in_range, bytes)` for what each piece has of `range`.
  template <typename Part>
  void for_each_part(ImageRange range, Part&& part) const {
    for (std::size_t i = first_piece(range.begin); i < pieces_.size() && offsets_[i] < range.end; ++i) {
      const std::size_t begin = std::max(offsets_[i], range.begin);
      const std::size_t end = std::min(offsets_[i] + pieces_[i].bytes, range.end);
      if (begin < end) part(pieces_[i], begin - offsets_[i], begin - range.begin, end - begin);
    }
  }

  /// Copies the host's ends within `range` into `image` (the image's byte at range.begin), or the reverse.
  void pack(ImageRange range, std::byte* image, StoreKind stores) const;
  void unpack(ImageRange range, const std::byte* image, StoreKind stores) const;

  /// The device's ends.
  [[nodiscard]] const std::vector<DeviceRun>& runs() const noexcept { return runs_; }

 private:
  void lay_out(CopyDirection direction, std::size_t shortest_run);
  void check_overlap() const;
  std::vector<TransferPiece> pieces_;
  std::vector<std::size_t> offsets_;
  std::vector<DeviceRun> runs_;
  std::size_t payload_bytes_ = 0;
  std::size_t image_bytes_ = 0;
  DeviceSide device_side_ = DeviceSide::runs;
};

}  // namespace penstock
