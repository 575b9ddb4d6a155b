#pragma once

#include <stdint.h>

/// The kernels' arguments; each kernel takes one by value as its only parameter. Row r of a gather lies at
/// head + r * stride_bytes for r below head_rows, and at source + r * stride_bytes from there on. `source` is
/// thus the address that row 0 would have.
namespace penstock::cuda {

/// Element types as the kernels know them. The values are those of penstock::DType.
enum Type : uint32_t {
  kBoolean,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64
};

/// For penstock_copy_pieces. `pieces` is an array of {source, destination, bytes}, 8 bytes each.
struct CopyPiecesArguments {
  const void* pieces;
  uint64_t count;
};

/// For penstock_gather_bytes_aligned (head, source, stride, row_bytes and destination are multiples of 16)
/// and penstock_gather_bytes.
struct GatherBytesArguments {
  const void* head;
  uint64_t head_rows;
  const void* source;
  const uint64_t* indices;  ///< null: 0, 1, 2, ...
  void* destination;
  uint64_t source_rows;
  uint64_t count;
  uint64_t row_bytes;  ///< below 32 GiB
  uint64_t stride_bytes;
};

/// For penstock_gather_widen_<bytes of from>_<bytes of to> (aligned as above) and penstock_gather_widen.
struct GatherWidenArguments {
  const void* head;
  uint64_t head_rows;
  const void* source;
  const uint64_t* indices;  ///< null: 0, 1, 2, ...
  void* destination;
  uint64_t source_rows;
  uint64_t count;
  uint64_t row_elements;  ///< below 2^32
  uint64_t stride_bytes;
  const float* scale;  ///< null: 1
  const float* shift;  ///< null: 0
  uint32_t channels;
  uint32_t channel_elements;
  uint32_t from;  ///< a Type
  uint32_t to;    ///< a Type
};

/// penstock::RowValue as the kernel reads it.
struct SplitValue {
  uint64_t destination;
  uint32_t destination_stride;
  uint32_t row_offset;
  uint32_t types;  ///< from; above it to, and whether the value is scaled, of one byte each
  float scale;
  float shift;
  uint32_t unused;
};

/// For penstock_split_rows. Segment s of a row, of kSplitSegment bytes, has the values from firsts[s] to
/// firsts[s + 1] - 1.
struct SplitRowsArguments {
  const void* rows;    ///< a multiple of 16, as row_bytes
  uint64_t row_bytes;  ///< at most 4 GiB
  uint64_t count;
  void* destination;
  const SplitValue* values;
  const uint32_t* firsts;
};

inline constexpr unsigned kFillOrderRounds = 12;

/// For penstock_fill_order; the last five as in penstock::KeyedPermutation::Network.
struct FillOrderArguments {
  uint64_t* indices;
  uint64_t count;
  uint64_t size;      ///< at most 2^62
  uint64_t first;     ///< below size
  uint64_t stride;    ///< below size
  uint64_t turn;      ///< stride times the number of threads, modulo size
  uint32_t shuffled;  ///< 0: an index is its position
  uint32_t right_bits;
  uint32_t left_mask;
  uint32_t right_mask;
  uint32_t keys[kFillOrderRounds];
  uint32_t late_keys[kFillOrderRounds];
};

inline constexpr uint32_t kFlipHorizontally = 1;
inline constexpr uint32_t kFlipVertically = 2;

/// A decoded picture, red, green and blue of each pixel side by side, and what becomes of it: see
/// penstock::JpegToRender.
struct RenderedPicture {
  const uint8_t* pixels;
  void* destination;
  uint64_t pitch;  ///< bytes from a row of pixels to the next
  int32_t crop_left;
  int32_t crop_top;
  int32_t crop_width;
  int32_t crop_height;
  int32_t resized_width;
  int32_t resized_height;
  int32_t window_left;
  int32_t window_top;
  uint32_t flips;  ///< kFlipHorizontally, kFlipVertically
  uint32_t unused;
};

/// For penstock_render, with a thread for each pixel of the windows.
struct RenderArguments {
  const RenderedPicture* pictures;
  uint32_t count;
  uint32_t width;  ///< of all windows
  uint32_t height;
  uint32_t channels_first;  ///< 0: the channels of a pixel lie side by side
  uint32_t bicubic;         ///< 0: bilinear
};

/// penstock::HashSum as the kernel writes it.
struct alignas(16) HashPart {
  uint64_t low;
  uint64_t high;
};

/// For penstock_hash, with a part for each warp.
struct HashArguments {
  const void* source;  ///< a multiple of 16
  uint64_t bytes;
  HashPart* parts;
};

struct OccupyArguments {
  uint64_t nanoseconds;
};

inline constexpr unsigned kCopyPiecesThreads = 256;
inline constexpr unsigned kGatherThreads = 512;
inline constexpr unsigned kSplitSegment = 256;
inline constexpr unsigned kSplitRows = 32;
inline constexpr unsigned kSplitThreads = 128;
inline constexpr unsigned kFillOrderThreads = 256;
inline constexpr unsigned kRenderThreads = 256;
inline constexpr unsigned kHashThreads = 256;

}  // namespace penstock::cuda
