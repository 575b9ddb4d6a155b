#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/core/sample_run.hpp>

#include <cstdint>

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

/// Writes the samples of a run as the indices of a gather.
struct OrderRequest {
  SampleRun run;
  std::uint64_t* indices = nullptr;  ///< device memory, or the device's address of locked host memory
};

/// True if `gather` can turn `from` into `to`: equal types; integers to wider integers that hold all their
/// values; uint8, int8, int16, uint16, float16, bfloat16, float32 to float16, bfloat16 or float32.
[[nodiscard]] bool can_widen(DType from, DType to) noexcept;

}  // namespace penstock
