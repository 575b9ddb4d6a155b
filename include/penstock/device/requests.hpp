#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/core/sample_run.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// One piece of several that are copied together. Both ends are reachable by the device.
struct CopyPiece {
  const void* source = nullptr;
  void* destination = nullptr;
  std::uint64_t bytes = 0;
};

/// Rows picked by number out of an array and laid side by side, converted on the way:
///   destination[i][e] = convert(source[indices[i]][e]) * scale[c] + shift[c],  c = (e / channel_elements) %
///   channels
/// where row r of the source lies at `head + r * stride` for r below head_rows, and at
/// `source + (r - head_rows) * stride` from there on.
/// Values go through float32 if scale or shift is given, or if the types are floats of different width.
/// Integers are extended to wider integers by value. Without scale, shift and change of type the bytes are
/// copied as they are, whatever the type.
struct GatherRequest {
  /// Row `head_rows` and the rows after it: device memory, or the device's address of locked host memory. May
  /// be null if the head holds all rows.
  const void* source = nullptr;
  std::uint64_t source_rows = 0;  ///< of head and source together
  /// Rows 0 to head_rows-1, if they lie elsewhere than the others (already on the device, say); the same
  /// kinds of memory as `source`. Ignored if head_rows is 0.
  const void* head = nullptr;
  std::uint64_t head_rows = 0;  ///< at most source_rows
  std::uint64_t row_elements = 0;
  std::uint64_t row_stride_bytes = 0;      ///< between rows of head and source; 0: rows lie side by side
  const std::uint64_t* indices = nullptr;  ///< reachable by the device; null: rows 0 to count-1
  std::uint64_t count = 0;                 ///< rows to gather
  void* destination = nullptr;             ///< count x row_elements of `to`, side by side
  DType from = DType::uint8;
  DType to = DType::uint8;
  const float* scale = nullptr;  ///< `channels` factors, reachable by the device; null: 1
  const float* shift = nullptr;  ///< `channels` terms, reachable by the device; null: 0
  std::uint32_t channels = 1;
  std::uint64_t channel_elements = 1;  ///< consecutive elements of one channel
  /// Blocks of threads to use on a GPU. A few fill the link (DeviceTuning) and leave room for the consumer's
  /// kernels. 0: as many as fill the device.
  std::uint32_t blocks = 0;
};

/// A value of each row, and the column that it goes to. Values may overlap, and several columns may take the
/// same bytes.
struct RowValue {
  /// Bytes from SplitRequest::destination to the value of row 0; a multiple of the size of `to`.
  std::uint64_t destination = 0;
  /// Bytes from a row's value to the next row's; a multiple of the size of `to`. It exceeds that size if the
  /// column has several values of each row.
  std::uint32_t destination_stride = 0;
  /// Bytes from the beginning of a row; a multiple of the size of `from`.
  std::uint32_t row_offset = 0;
  DType from = DType::uint8;
  DType to = DType::uint8;  ///< see can_widen; equal types without scaling: the bytes are copied as they are
  bool scaled = false;      ///< writes value * scale + shift, computed in float32; needs a float as `to`
  float scale = 1;
  float shift = 0;
};

/// The device handles rows in segments of this many bytes. A value lies in one segment, since each is aligned
/// to its own size.
inline constexpr std::size_t kSplitSegmentBytes = 256;

/// Rows that lie side by side, each value of which goes to a column of its own, converted on the way:
///   column[i] = convert(row[i]) * scale + shift
/// Conversions are those of a gather. The tables are read when the work's turn comes. A GPU cannot refuse
/// wrong ones, so make `firsts` with segment_firsts, which checks the values.
struct SplitRequest {
  /// `count` rows: device memory, or the device's address of locked host memory; 16-byte aligned.
  const void* rows = nullptr;
  std::uint64_t row_bytes = 0;  ///< a multiple of 16, at most 4 GiB
  std::uint64_t count = 0;
  void* destination = nullptr;            ///< device memory, 16-byte aligned; no column may overlap the rows
  const RowValue* values = nullptr;       ///< reachable by the device; ascending by row_offset
  const std::uint32_t* firsts = nullptr;  ///< reachable by the device: what segment_firsts returned
  std::uint32_t value_count = 0;
};

/// For each segment of a row of `row_bytes`, the number of the first value that begins in it or after it;
/// then the number of values. Throws InvalidArgument if the values are not ascending, if one runs past the
/// row or is not aligned, or if its types do not agree. `values` is memory of the host.
[[nodiscard]] std::vector<std::uint32_t> segment_firsts(std::span<const RowValue> values,
                                                        std::uint64_t row_bytes);

/// Writes the samples of a run as the indices of a gather.
struct OrderRequest {
  SampleRun run;
  std::uint64_t* indices = nullptr;  ///< device memory, or the device's address of locked host memory
};

/// A part of a hash, or the whole. Parts add up, each number modulo 2^64.
struct alignas(16) HashSum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const HashSum&) const = default;
};

/// Hashes memory in 128 bits, to find whether it has changed. If one aligned word of 8 bytes differs, so does
/// the hash. If more differ, hashes are equal by chance: once in 2^128 times. It does not withstand changes
/// that are made to be missed.
struct HashRequest {
  const void* source =
      nullptr;  ///< device memory, or the device's address of locked host memory; 16-byte aligned
  std::uint64_t bytes = 0;
  HashSum* sums = nullptr;  ///< sum_count(bytes) parts of the hash, reachable by the device

  [[nodiscard]] static std::size_t sum_count(std::uint64_t bytes) noexcept;
};

/// True if `gather` and `split_rows` can turn `from` into `to`: equal types; integers to wider integers that
/// hold all their values; uint8, int8, int16, uint16, float16, bfloat16, float32 to float16, bfloat16 or
/// float32.
[[nodiscard]] bool can_widen(DType from, DType to) noexcept;

/// Names memory of Device::allocate_shared to other processes of this host. A plain value: send its bytes.
struct PeerMemoryHandle {
  std::array<std::byte, 64> native{};  ///< CUipcMemHandle on cuda
  std::uint64_t offset = 0;            ///< of the memory in the allocation that `native` names
  std::uint64_t bytes = 0;             ///< from there to the allocation's end
};

}  // namespace penstock
