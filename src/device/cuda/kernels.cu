// The kernels, compiled to PTX by tools/make_kernels.sh.
//
// Rows often lie in host memory, a microsecond or more away, and few blocks may run beside the consumer's
// kernels. Three habits follow. Every thread keeps several independent 16-byte loads in flight. The indices
// of
// the next rows are fetched while the rows before them arrive. Every load is of an aligned 16-byte chunk,
// whatever the alignment of the row. Such a chunk lies within one page, so reading all of it touches no page
// that a byte of it does not touch.
//
// Arithmetic is rounded after each step (no fused multiply-add), so that every processor gets the same bits.
#include "device/cuda/kernel_arguments.hpp"
#ifdef __CUDACC__
#include "device/cuda/kernel_instructions.hpp"
#endif
#include "device/cuda/render_pixel.hpp"
#include "device/hash_word.hpp"

#include <cstdint>

namespace {

using namespace penstock::cuda;

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kGatherThreads / kWarp;
constexpr unsigned kChunk = 16;
constexpr unsigned kEveryLane = 0xffffffffu;
constexpr uint64_t kNoRow = ~uint64_t{0};

__device__ __forceinline__ uint4 load_chunk(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}

__device__ __forceinline__ const void* advance(const void* base, uint64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}

__device__ __forceinline__ void* advance(void* base, uint64_t bytes) {
  return static_cast<char*>(base) + bytes;
}

__device__ __forceinline__ uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// The 16 bytes that begin `shift` bytes into the 32 bytes of `low` and `high`.
__device__ __forceinline__ uint4 window(uint4 low, uint4 high, unsigned shift) {
  if (shift & 8) {
    low.x = low.z, low.y = low.w, low.z = high.x, low.w = high.y;
    high.x = high.z, high.y = high.w;
  }
  if (shift & 4) {
    low.x = low.y, low.y = low.z, low.z = low.w, low.w = high.x;
    high.x = high.y;
  }
  const unsigned bits = 8 * (shift & 3);
  return make_uint4(__funnelshift_r(low.x, low.y, bits), __funnelshift_r(low.y, low.z, bits),
                    __funnelshift_r(low.z, low.w, bits), __funnelshift_r(low.w, high.x, bits));
}

}  // namespace

// Stores bytes [begin, end) of `value` to the chunk at `destination`.
extern "C" __device__ __noinline__ void penstock_store_part(char* destination, uint4 value, unsigned begin,
                                                            unsigned end) {
  const unsigned words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (unsigned word = 0; word < 4; ++word) {
    const unsigned first = 4 * word;
    if (begin <= first && first + 4 <= end) {
      *reinterpret_cast<unsigned*>(destination + first) = words[word];
    } else {
#pragma unroll
      for (unsigned byte = 0; byte < 4; ++byte) {
        if (begin <= first + byte && first + byte < end) {
          destination[first + byte] = static_cast<char>(words[word] >> (8 * byte));
        }
      }
    }
  }
}

namespace {

// Walks the chunks of all rows, `step` chunks at a time, without a division for each step.
struct Walk {
  uint64_t row;
  unsigned chunk;  // of the row
  uint64_t step_rows;
  unsigned step_chunks;
  unsigned row_chunks;

  __device__ __forceinline__ Walk(uint64_t first, uint64_t step, unsigned chunks_of_row)
      : row(first / chunks_of_row),
        chunk(static_cast<unsigned>(first % chunks_of_row)),
        step_rows(step / chunks_of_row),
        step_chunks(static_cast<unsigned>(step % chunks_of_row)),
        row_chunks(chunks_of_row) {}

  __device__ __forceinline__ void next() {
    row += step_rows;
    chunk += step_chunks;
    if (chunk >= row_chunks) {
      chunk -= row_chunks;
      ++row;
    }
  }
};

// Source row of gathered row `row`; kNoRow if the source does not have it.
__device__ __forceinline__ uint64_t source_row(const uint64_t* indices, uint64_t row, uint64_t count,
                                               uint64_t source_rows) {
  if (row >= count) return kNoRow;
  const uint64_t index = indices == nullptr ? row : __ldg(indices + row);
  return index < source_rows ? index : kNoRow;
}

// Address of row `index` of the source.
template <typename Arguments>
__device__ __forceinline__ const void* row_at(const Arguments& a, uint64_t index) {
  return advance(index < a.head_rows ? a.head : a.source, index * a.stride_bytes);
}

constexpr unsigned kInFlight = 4;

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads, 2)
    penstock_gather_bytes_aligned(const GatherBytesArguments a) {
  const unsigned row_chunks = static_cast<unsigned>(a.row_bytes / kChunk);
  const uint64_t total = a.count * row_chunks;
  const uint64_t step = uint64_t{gridDim.x} * kGatherThreads;
  uint64_t at = uint64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  Walk walk(at, step, row_chunks);
  uint64_t index[kInFlight];
  unsigned chunk[kInFlight];
  const auto look_up = [&] {
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      index[k] = source_row(a.indices, walk.row, a.count, a.source_rows);
      chunk[k] = walk.chunk;
      walk.next();
    }
  };
  look_up();
  while (at < total) {
    uint4 value[kInFlight];
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      value[k] = make_uint4(0, 0, 0, 0);
      if (index[k] != kNoRow) {
        value[k] = load_chunk(advance(row_at(a, index[k]), uint64_t{chunk[k]} * kChunk));
      }
    }
    look_up();
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      if (at < total) *static_cast<uint4*>(advance(a.destination, at * kChunk)) = value[k];
      at += step;
    }
  }
}

// The same for rows of any size and alignment. A thread makes one aligned chunk of the destination out of two
// aligned chunks of the source. The next lane has usually loaded the second one.
extern "C" __global__ void __launch_bounds__(kGatherThreads, 2)
    penstock_gather_bytes(const GatherBytesArguments a) {
  const unsigned row_chunks = static_cast<unsigned>((a.row_bytes + kChunk - 2) / kChunk) + 1;
  const uint64_t total = a.count * row_chunks;
  const uint64_t step = uint64_t{gridDim.x} * kGatherThreads;
  const unsigned lane = threadIdx.x % kWarp;
  uint64_t warp_at = uint64_t{blockIdx.x} * kGatherThreads + (threadIdx.x - lane);
  Walk walk(warp_at + lane, step, row_chunks);
  while (warp_at < total) {
    uint4 low[kInFlight];
    uint4 high[kInFlight];
    char* target[kInFlight];
    unsigned part[kInFlight];  // begin, end, shift, and whether the next lane has `high`
    uint64_t index[kInFlight];
    uint64_t row[kInFlight];
    unsigned chunk[kInFlight];
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      row[k] = walk.row;
      chunk[k] = walk.chunk;
      index[k] = source_row(a.indices, walk.row, a.count, a.source_rows);
      walk.next();
    }
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t row_begin = address_of(a.destination) + row[k] * a.row_bytes;
      const uint64_t row_end = row_begin + a.row_bytes;
      const uint64_t here = row_begin / kChunk * kChunk + uint64_t{chunk[k]} * kChunk;
      const bool active = row[k] < a.count && here < row_end;
      const unsigned begin = here < row_begin ? static_cast<unsigned>(row_begin - here) : 0;
      const unsigned end = !active                   ? 0
                           : row_end - here < kChunk ? static_cast<unsigned>(row_end - here)
                                                     : kChunk;
      const uint64_t from = address_of(row_at(a, index[k])) + (here - row_begin);
      const unsigned shift = static_cast<unsigned>(from % kChunk);
      const bool present = active && index[k] != kNoRow;
      const bool need_low = present && begin + shift < kChunk;
      const bool need_high = present && end + shift > kChunk;
      const bool neighbour = lane + 1 < kWarp && chunk[k] + 1 < row_chunks && here + kChunk < row_end;
      low[k] = high[k] = make_uint4(0, 0, 0, 0);
      const uint4* source = reinterpret_cast<const uint4*>(from - shift);
      if (need_low) low[k] = __ldg(source);
      if (need_high && !neighbour) high[k] = __ldg(source + 1);
      target[k] = reinterpret_cast<char*>(here);
      part[k] = begin | end << 8 | shift << 16 | (need_high && neighbour ? 1u << 24 : 0u);
    }
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint4 next =
          make_uint4(__shfl_down_sync(kEveryLane, low[k].x, 1), __shfl_down_sync(kEveryLane, low[k].y, 1),
                     __shfl_down_sync(kEveryLane, low[k].z, 1), __shfl_down_sync(kEveryLane, low[k].w, 1));
      const unsigned begin = part[k] & 0xff;
      const unsigned end = part[k] >> 8 & 0xff;
      const uint4 value = window(low[k], part[k] >> 24 ? next : high[k], part[k] >> 16 & 0xff);
      if (begin == 0 && end == kChunk) {
        *reinterpret_cast<uint4*>(target[k]) = value;
      } else if (end != 0) {
        penstock_store_part(target[k], value, begin, end);
      }
    }
    warp_at += step * kInFlight;
  }
}

namespace {

struct Piece {
  const char* source;
  char* destination;
  uint64_t bytes;
};

}  // namespace

// Copies [0, bytes) with `threads` threads, of which the caller is number `thread`.
extern "C" __device__ __noinline__ void penstock_copy_span(char* destination, const char* source,
                                                           uint64_t bytes, uint64_t thread,
                                                           uint64_t threads) {
  const uint64_t to_boundary = (kChunk - address_of(destination) % kChunk) % kChunk;
  const uint64_t head = to_boundary < bytes ? to_boundary : bytes;
  const uint64_t chunks = (bytes - head) / kChunk;
  const uint64_t tail = head + chunks * kChunk;
  if (thread < head) destination[thread] = source[thread];
  if (thread < bytes - tail) destination[tail + thread] = source[tail + thread];
  uint4* to = reinterpret_cast<uint4*>(destination + head);
  const unsigned shift = static_cast<unsigned>(address_of(source + head) % kChunk);
  const uint4* from = reinterpret_cast<const uint4*>(source + head - shift);
  for (uint64_t at = thread; at < chunks; at += kInFlight * threads) {
    uint4 low[kInFlight];
    uint4 high[kInFlight];
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t chunk = at + k * threads;
      low[k] = high[k] = make_uint4(0, 0, 0, 0);
      if (chunk < chunks) {
        low[k] = load_chunk(from + chunk);
        if (shift != 0) high[k] = load_chunk(from + chunk + 1);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t chunk = at + k * threads;
      if (chunk < chunks) to[chunk] = shift == 0 ? low[k] : window(low[k], high[k], shift);
    }
  }
}

namespace {

constexpr uint64_t kOwnBytes = 64 * 1024;  // largest piece that one block copies
constexpr unsigned kSharers = 64;          // blocks that read the whole table again, if it is long

}  // namespace

// Each block copies whole pieces. After that all blocks together copy the pieces longer than kOwnBytes.
extern "C" __global__ void __launch_bounds__(kCopyPiecesThreads)
    penstock_copy_pieces(const CopyPiecesArguments a) {
  const Piece* pieces = static_cast<const Piece*>(a.pieces);
  for (uint64_t i = blockIdx.x; i < a.count; i += gridDim.x) {
    const Piece piece = pieces[i];
    penstock_copy_span(piece.destination, piece.source, piece.bytes < kOwnBytes ? piece.bytes : kOwnBytes,
                       threadIdx.x, kCopyPiecesThreads);
  }
  const unsigned sharers = a.count > kSharers && gridDim.x > kSharers ? kSharers : gridDim.x;
  if (blockIdx.x >= sharers) return;
  const uint64_t thread = uint64_t{blockIdx.x} * kCopyPiecesThreads + threadIdx.x;
  const unsigned lane = threadIdx.x % kWarp;
  for (uint64_t first = 0; first < a.count; first += kWarp) {
    const bool is_long = first + lane < a.count && pieces[first + lane].bytes > kOwnBytes;
    for (unsigned waiting = __ballot_sync(kEveryLane, is_long); waiting != 0; waiting &= waiting - 1) {
      const Piece piece = pieces[first + __ffs(static_cast<int>(waiting)) - 1];
      penstock_copy_span(piece.destination + kOwnBytes, piece.source + kOwnBytes, piece.bytes - kOwnBytes,
                         thread, uint64_t{sharers} * kCopyPiecesThreads);
    }
  }
}

namespace {

__device__ __forceinline__ unsigned float_to_bfloat(float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return value != value ? bits >> 16 | 0x40u : rounded;
}

__device__ __forceinline__ bool is_float(uint32_t type) { return type >= kFloat16; }

__device__ __forceinline__ bool is_signed(uint32_t type) {
  return type == kInt8 || type == kInt16 || type == kInt32;
}

// The integer in the low `bytes` bytes of `raw`, extended by value.
__device__ __forceinline__ int64_t to_integer(unsigned raw, unsigned bytes, uint32_t type) {
  const int64_t sign = is_signed(type) ? int64_t{1} << (8 * bytes - 1) : 0;
  const int64_t value = bytes == 4 ? raw : raw & ((1u << 8 * bytes) - 1);
  return (value ^ sign) - sign;
}

// The same for types that convert to floats.
__device__ __forceinline__ float to_float(unsigned raw, unsigned bytes, uint32_t type) {
  if (bytes == 4) return __uint_as_float(raw);
  const int sign = is_signed(type) ? 1 << (8 * bytes - 1) : 0;
  const int number = static_cast<int>(raw & ((1u << 8 * bytes) - 1));
  const float value = static_cast<float>((number ^ sign) - sign);
  if (bytes == 1) return value;
  return type == kFloat16    ? half_to_float(raw & 0xffffu)
         : type == kBfloat16 ? __uint_as_float(raw << 16)
                             : value;
}

__device__ __forceinline__ unsigned from_float(float value, unsigned bytes, uint32_t type) {
  if (bytes == 4) return __float_as_uint(value);
  return type == kFloat16 ? float_to_half(value) : float_to_bfloat(value);
}

// Turns one element into `to`. The low bytes of `raw` are the element. `scale(value)` is called for floats.
template <typename Scale>
__device__ __forceinline__ uint64_t convert_element(unsigned raw, unsigned from_bytes, uint32_t from,
                                                    unsigned to_bytes, uint32_t to, Scale&& scale) {
  if (!is_float(to)) return to_integer(raw, from_bytes, from);
  return from_float(scale(to_float(raw, from_bytes, from)), to_bytes, to);
}

__device__ __forceinline__ void store_element(void* destination, unsigned bytes, uint64_t value) {
  if (bytes == 1) {
    *static_cast<unsigned char*>(destination) = static_cast<unsigned char>(value);
  } else if (bytes == 2) {
    *static_cast<unsigned short*>(destination) = static_cast<unsigned short>(value);
  } else if (bytes == 4) {
    *static_cast<unsigned*>(destination) = static_cast<unsigned>(value);
  } else {
    *static_cast<uint64_t*>(destination) = value;
  }
}

// The bytes of one element as an unsigned number, with the next elements' bytes above it.
template <unsigned Size>
__device__ __forceinline__ unsigned element(const unsigned (&words)[4], unsigned i) {
  constexpr unsigned kPerWord = 4 / Size;
  return words[i / kPerWord] >> (8 * Size * (i % kPerWord));
}

// Reads `Bytes` bytes of a warp's shared span, aligned to their size.
template <unsigned Bytes>
__device__ __forceinline__ void read_span(const char* span, unsigned (&words)[4]) {
  if constexpr (Bytes == 4) {
    words[0] = *reinterpret_cast<const unsigned*>(span);
  } else {
    const uint2 value = *reinterpret_cast<const uint2*>(span);
    words[0] = value.x, words[1] = value.y;
  }
}

// The channel of a row's element, followed through consecutive elements.
struct Channel {
  unsigned number;
  unsigned element;

  __device__ __forceinline__ Channel(const GatherWidenArguments& a, uint64_t at) : number(0), element(0) {
    if (a.channels == 1 || (a.scale == nullptr && a.shift == nullptr)) return;
    const unsigned position = static_cast<unsigned>(at);
    number = position / a.channel_elements;
    element = position - number * a.channel_elements;
    number %= a.channels;
  }

  __device__ __forceinline__ void next(const GatherWidenArguments& a) {
    if (a.channels == 1 || ++element < a.channel_elements) return;
    element = 0;
    if (++number == a.channels) number = 0;
  }
};

// Makes one aligned chunk of the destination out of `words`, which begin with element `at` of a row.
template <unsigned From, unsigned To>
__device__ __forceinline__ uint4 convert_chunk(const unsigned (&words)[4], const GatherWidenArguments& a,
                                               uint64_t at) {
  constexpr unsigned kElements = kChunk / To;
  unsigned raw[kElements];
  if (is_float(a.to)) {
    float value[kElements];
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) value[i] = to_float(element<From>(words, i), From, a.from);
    Channel channel(a, at);
    if (a.scale != nullptr || a.shift != nullptr) {
#pragma unroll
      for (unsigned i = 0; i < kElements; ++i) {
        if (a.scale != nullptr) value[i] = __fmul_rn(value[i], __ldg(a.scale + channel.number));
        if (a.shift != nullptr) value[i] = __fadd_rn(value[i], __ldg(a.shift + channel.number));
        channel.next(a);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) raw[i] = from_float(value[i], To, a.to);
  } else {
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) {
      raw[i] = static_cast<unsigned>(to_integer(element<From>(words, i), From, a.from));
    }
  }
  if constexpr (To == 4) return make_uint4(raw[0], raw[1], raw[2], raw[3]);
  return make_uint4(__byte_perm(raw[0], raw[1], 0x5410), __byte_perm(raw[2], raw[3], 0x5410),
                    __byte_perm(raw[4 % kElements], raw[5 % kElements], 0x5410),
                    __byte_perm(raw[6 % kElements], raw[7 % kElements], 0x5410));
}

// Warps take spans of kInFlight x 32 chunks of the source. A span goes through shared memory, so that loads
// and stores are both whole chunks, whatever the sizes of the types. While one span is converted, the next is
// loaded.
template <unsigned From, unsigned To>
__device__ __forceinline__ void gather_widen(const GatherWidenArguments& a) {
  constexpr unsigned kSpan = kInFlight * kWarp;
  constexpr unsigned kBytes = kChunk / To * From;  // of the source for one chunk of the destination
  __shared__ uint4 spans[kWarps][kSpan];
  __shared__ unsigned presence[kWarps][kInFlight];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned row_chunks = static_cast<unsigned>(a.row_elements * From / kChunk);
  const uint64_t total = a.count * row_chunks;
  const uint64_t step = uint64_t{gridDim.x} * kWarps * kSpan;
  uint64_t at = (uint64_t{blockIdx.x} * kWarps + warp) * kSpan;
  Walk walk(at + lane, kWarp, row_chunks);
  const Walk jump(0, step - kSpan, row_chunks);
  uint64_t index[kInFlight];
  unsigned chunk[kInFlight];
  uint4 value[kInFlight];
  bool present[kInFlight];
  const auto look_up = [&] {
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      index[k] = source_row(a.indices, walk.row, a.count, a.source_rows);
      chunk[k] = walk.chunk;
      walk.next();
    }
    walk.row += jump.step_rows;
    walk.chunk += jump.step_chunks;
    if (walk.chunk >= row_chunks) {
      walk.chunk -= row_chunks;
      ++walk.row;
    }
  };
  const auto load = [&] {
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      value[k] = make_uint4(0, 0, 0, 0);
      present[k] = index[k] != kNoRow;
      if (present[k]) {
        value[k] = load_chunk(advance(row_at(a, index[k]), uint64_t{chunk[k]} * kChunk));
      }
    }
  };
  const auto put = [&] {
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      spans[warp][k * kWarp + lane] = value[k];
      const unsigned vote = __ballot_sync(kEveryLane, present[k]);
      if (lane == 0) presence[warp][k] = vote;
    }
    __syncwarp();
  };
  look_up();
  unsigned first_chunk = 0;
  // Turn n loads span n and converts span n - 1.
  for (bool ready = false; at < total || ready; at += step) {
    load();
    const unsigned loaded_first_chunk = __shfl_sync(kEveryLane, chunk[0], 0);
    look_up();
    if (ready) {
      const uint64_t before = at - step;
      const char* span = reinterpret_cast<const char*>(spans[warp]);
      char* destination = static_cast<char*>(advance(a.destination, before * (kChunk / From * To)));
#pragma unroll 1
      for (unsigned out = lane; out < kSpan * kChunk / kBytes; out += kWarp) {
        const unsigned byte = out * kBytes;
        const unsigned in = byte / kChunk;
        if (before + in >= total) break;
        uint4 result = make_uint4(0, 0, 0, 0);
        if (presence[warp][in / kWarp] >> (in % kWarp) & 1u) {
          unsigned words[4];
          read_span<kBytes>(span + byte, words);
          const unsigned row_chunk = a.channels == 1 ? 0 : (first_chunk + in) % row_chunks;
          result = convert_chunk<From, To>(words, a, (uint64_t{row_chunk} * kChunk + byte % kChunk) / From);
        }
        *reinterpret_cast<uint4*>(destination + uint64_t{out} * kChunk) = result;
      }
    }
    put();
    ready = at < total;
    first_chunk = loaded_first_chunk;
  }
}

}  // namespace

#define PENSTOCK_GATHER_WIDEN(from, to)                                   \
  extern "C" __global__ void __launch_bounds__(kGatherThreads, 1)         \
      penstock_gather_widen_##from##_##to(const GatherWidenArguments a) { \
    gather_widen<from, to>(a);                                            \
  }

PENSTOCK_GATHER_WIDEN(1, 2)
PENSTOCK_GATHER_WIDEN(1, 4)
PENSTOCK_GATHER_WIDEN(2, 4)

namespace {

__device__ __forceinline__ unsigned bytes_of(uint32_t type) {
  return type <= kInt8                                             ? 1
         : type <= kInt16 || type == kFloat16 || type == kBfloat16 ? 2
         : type == kUint64 || type == kInt64 || type == kFloat64   ? 8
                                                                   : 4;
}

// The destination of a chunk's elements.
struct Place {
  uint64_t out;      // element of the destination that the first element is
  unsigned element;  // of the row
  unsigned char begin, end, present, unused;
};

constexpr unsigned kAnyInFlight = 2;
constexpr unsigned kAnySpan = kAnyInFlight * kWarp;

}  // namespace

// The same for rows of any size and alignment, and any two types. Elements are stored one by one.
extern "C" __global__ void __launch_bounds__(kGatherThreads, 1)
    penstock_gather_widen(const GatherWidenArguments a) {
  __shared__ uint4 spans[kWarps][kAnySpan];
  __shared__ Place places[kWarps][kAnySpan];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned from_bytes = bytes_of(a.from);
  const unsigned to_bytes = bytes_of(a.to);
  const unsigned chunk_elements = kChunk / from_bytes;
  const uint64_t row_bytes = a.row_elements * from_bytes;
  const unsigned row_chunks = static_cast<unsigned>((row_bytes + kChunk - 2) / kChunk) + 1;
  const uint64_t total = a.count * row_chunks;
  const uint64_t step = uint64_t{gridDim.x} * kWarps * kAnySpan;
  for (uint64_t at = (uint64_t{blockIdx.x} * kWarps + warp) * kAnySpan; at < total; at += step) {
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < kAnyInFlight; ++k) {
      const uint64_t flat = at + k * kWarp + lane;
      const uint64_t row = flat / row_chunks;
      const unsigned chunk = static_cast<unsigned>(flat % row_chunks);
      const uint64_t index = source_row(a.indices, row, a.count, a.source_rows);
      const uint64_t begin = index == kNoRow ? 0 : address_of(row_at(a, index));
      const uint64_t here = begin / kChunk * kChunk + uint64_t{chunk} * kChunk;
      const uint64_t from = here < begin ? begin : here;
      const uint64_t until = here + kChunk < begin + row_bytes ? here + kChunk : begin + row_bytes;
      const bool active = row < a.count && from < until;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (active && index != kNoRow) value = __ldg(reinterpret_cast<const uint4*>(here));
      spans[warp][k * kWarp + lane] = value;
      Place place;
      place.element = static_cast<unsigned>((from - begin) / from_bytes);
      place.out = row * a.row_elements + place.element;
      place.begin = active ? static_cast<unsigned char>(from - here) : 0;
      place.end = active ? static_cast<unsigned char>(until - here) : 0;
      place.present = index != kNoRow;
      place.unused = 0;
      places[warp][k * kWarp + lane] = place;
    }
    __syncwarp();
#pragma unroll 1
    for (unsigned i = lane; i < kAnySpan * chunk_elements; i += kWarp) {
      const Place place = places[warp][i / chunk_elements];
      const unsigned byte = i % chunk_elements * from_bytes;
      if (byte < place.begin || byte >= place.end) continue;
      const unsigned beyond = (byte - place.begin) / from_bytes;
      const char* data = reinterpret_cast<const char*>(&spans[warp][i / chunk_elements]) + byte;
      const unsigned raw = from_bytes == 1   ? *reinterpret_cast<const unsigned char*>(data)
                           : from_bytes == 2 ? *reinterpret_cast<const unsigned short*>(data)
                                             : *reinterpret_cast<const unsigned*>(data);
      uint64_t result = 0;
      if (place.present) {
        result = convert_element(raw, from_bytes, a.from, to_bytes, a.to, [&](float value) {
          const unsigned channel = Channel(a, place.element + beyond).number;
          if (a.scale != nullptr) value = __fmul_rn(value, __ldg(a.scale + channel));
          if (a.shift != nullptr) value = __fadd_rn(value, __ldg(a.shift + channel));
          return value;
        });
      }
      store_element(advance(a.destination, (place.out + beyond) * to_bytes), to_bytes, result);
    }
  }
}

namespace {

constexpr unsigned kSplitWarps = kSplitThreads / kWarp;
constexpr unsigned kSplitInFlight = 8;
constexpr unsigned kWordsOfChunk = kChunk / 4;
// One word more than a row needs: the lanes, each in a row of its own, then read 32 different banks.
constexpr unsigned kSplitRowWords = kSplitSegment / 4 + 1;

// Loads `rows` times `chunks` chunks, with a distance of row_bytes between rows, to the rows of a tile.
__device__ __forceinline__ void load_tile(unsigned (*tile)[kSplitRowWords], const void* from,
                                          uint64_t row_bytes, unsigned rows, unsigned chunks) {
  const unsigned total = rows * chunks;
  const unsigned step_rows = kWarp / chunks;
  const unsigned step_chunks = kWarp % chunks;
  unsigned at = threadIdx.x % kWarp;
  unsigned row = at / chunks;
  unsigned chunk = at % chunks;
#pragma unroll 1
  while (at < total) {
    uint4 value[kSplitInFlight];
    unsigned* target[kSplitInFlight];
#pragma unroll
    for (unsigned k = 0; k < kSplitInFlight; ++k) {
      target[k] = nullptr;
      value[k] = make_uint4(0, 0, 0, 0);
      if (at < total) {
        target[k] = &tile[row][chunk * kWordsOfChunk];
        value[k] = load_chunk(advance(from, row * row_bytes + chunk * kChunk));
      }
      at += kWarp;
      row += step_rows;
      chunk += step_chunks;
      if (chunk >= chunks) {
        chunk -= chunks;
        ++row;
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kSplitInFlight; ++k) {
      if (target[k] == nullptr) continue;
      target[k][0] = value[k].x;
      target[k][1] = value[k].y;
      target[k][2] = value[k].z;
      target[k][3] = value[k].w;
    }
  }
}

// Reads a table's entry by four loads, none of which waits for another.
__device__ __forceinline__ SplitValue load_value(const SplitValue* value) {
  const uint2* parts = reinterpret_cast<const uint2*>(value);
  const uint2 destination = __ldg(parts);
  const uint2 place = __ldg(parts + 1);
  const uint2 types = __ldg(parts + 2);
  const uint2 last = __ldg(parts + 3);
  return {uint64_t{destination.y} << 32 | destination.x,
          place.x,
          place.y,
          types.x,
          __uint_as_float(types.y),
          __uint_as_float(last.x),
          0};
}

// Takes `value` out of the segment of row `row`, converts it, and stores it to its column.
__device__ __forceinline__ void split_value(const SplitValue& value, const unsigned* segment,
                                            void* destination, uint64_t row) {
  const uint32_t from = value.types & 0xff;
  const uint32_t to = value.types >> 8 & 0xff;
  const bool scaled = (value.types >> 16 & 0xff) != 0;
  const unsigned from_bytes = bytes_of(from);
  const unsigned to_bytes = bytes_of(to);
  const unsigned byte = value.row_offset % kSplitSegment;
  const unsigned raw = segment[byte / 4] >> (8 * (byte % 4));
  uint64_t result = raw;
  if (from != to || scaled) {
    result = convert_element(raw, from_bytes, from, to_bytes, to, [&](float number) {
      if (!scaled) return number;
      return __fadd_rn(__fmul_rn(number, value.scale), value.shift);
    });
  } else if (from_bytes == 8) {
    result |= uint64_t{segment[byte / 4 + 1]} << 32;
  }
  store_element(advance(destination, value.destination + row * value.destination_stride), to_bytes, result);
}

}  // namespace

// A warp takes 32 rows of one segment through shared memory, and then value after value of them. It loads
// whole chunks of rows and stores whole runs of columns.
extern "C" __global__ void __launch_bounds__(kSplitThreads) penstock_split_rows(const SplitRowsArguments a) {
  static_assert(kSplitRows == kWarp);
  __shared__ unsigned tiles[kSplitWarps][kSplitRows][kSplitRowWords];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned segments = static_cast<unsigned>((a.row_bytes + kSplitSegment - 1) / kSplitSegment);
  Walk walk(uint64_t{blockIdx.x} * kSplitWarps + warp, uint64_t{gridDim.x} * kSplitWarps, segments);
#pragma unroll 1
  for (; walk.row * kSplitRows < a.count; walk.next()) {
    const unsigned first = __ldg(a.firsts + walk.chunk);
    const unsigned last = __ldg(a.firsts + walk.chunk + 1);
    if (first == last) continue;
    const uint64_t first_row = walk.row * kSplitRows;
    const uint64_t rows = a.count - first_row;
    const uint64_t begin = uint64_t{walk.chunk} * kSplitSegment;
    const uint64_t bytes = a.row_bytes - begin;
    __syncwarp();
    load_tile(tiles[warp], advance(a.rows, first_row * a.row_bytes + begin), a.row_bytes,
              rows < kSplitRows ? static_cast<unsigned>(rows) : kSplitRows,
              (bytes < kSplitSegment ? static_cast<unsigned>(bytes) : kSplitSegment) / kChunk);
    __syncwarp();
    if (lane >= rows) continue;
#pragma unroll 1
    for (unsigned i = first; i < last; ++i) {
      split_value(load_value(a.values + i), tiles[warp][lane], a.destination, first_row + lane);
    }
  }
}

namespace {

// One round's function of the network that src/core/permutation.cpp describes.
__device__ __forceinline__ uint32_t mix(uint32_t x, uint32_t key, uint32_t late_key) {
  x ^= key;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= late_key;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ x >> 16;
}

__device__ __forceinline__ uint64_t encrypt(const FillOrderArguments& a, uint64_t value) {
  uint32_t left = static_cast<uint32_t>(value >> a.right_bits);
  uint32_t right = static_cast<uint32_t>(value) & a.right_mask;
#pragma unroll
  for (unsigned round = 0; round < kFillOrderRounds; round += 2) {
    left ^= mix(right, a.keys[round], a.late_keys[round]) & a.left_mask;
    right ^= mix(left, a.keys[round + 1], a.late_keys[round + 1]) & a.right_mask;
  }
  return uint64_t{left} << a.right_bits | right;
}

}  // namespace

// A thread whose value falls below the size goes on to its next value at once, while others of its warp still
// walk. No turn of the network is idle before the end.
extern "C" __global__ void __launch_bounds__(kFillOrderThreads)
    penstock_fill_order(const FillOrderArguments a) {
  uint64_t at = uint64_t{blockIdx.x} * kFillOrderThreads + threadIdx.x;
  if (at >= a.count) return;
  uint64_t position = a.first + at * a.stride;
  if (position >= a.size) position %= a.size;
  uint64_t value = position;
  while (at < a.count) {
    if (a.shuffled != 0) value = encrypt(a, value);
    if (value < a.size) {
      a.indices[at] = value;
      at += uint64_t{gridDim.x} * kFillOrderThreads;
      position += a.turn;
      if (position >= a.size) position -= a.size;
      value = position;
    }
  }
}

// A thread makes a pixel. What its neighbours read, too, is in the cache.
extern "C" __global__ void __launch_bounds__(kRenderThreads) penstock_render(const RenderArguments a) {
  const uint64_t pixel = uint64_t{blockIdx.x} * kRenderThreads + threadIdx.x;
  if (pixel < uint64_t{a.count} * a.width * a.height) penstock::cuda::render_pixel(a, pixel);
}

extern "C" __global__ void __launch_bounds__(kHashThreads) penstock_hash(const HashArguments a) {
  const uint64_t chunks = a.bytes / kChunk;
  const uint64_t step = uint64_t{gridDim.x} * kHashThreads;
  const uint64_t thread = uint64_t{blockIdx.x} * kHashThreads + threadIdx.x;
  uint64_t low = 0;
  uint64_t high = 0;
  for (uint64_t first = thread; first < chunks; first += kInFlight * step) {
    uint4 value[kInFlight];
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t at = first + k * step;
      value[k] = load_chunk(advance(a.source, (at < chunks ? at : first) * kChunk));
    }
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t at = first + k * step;
      if (at >= chunks) break;
      penstock::hash_word(2 * at, uint64_t{value[k].y} << 32 | value[k].x, low, high);
      penstock::hash_word(2 * at + 1, uint64_t{value[k].w} << 32 | value[k].z, low, high);
    }
  }
  if (thread == 0) {
    const auto* const bytes = static_cast<const unsigned char*>(a.source);
    for (uint64_t at = chunks * kChunk; at < a.bytes; at += 8) {
      uint64_t word = 0;
      for (unsigned i = 0; i < 8 && at + i < a.bytes; ++i) word |= uint64_t{bytes[at + i]} << 8 * i;
      penstock::hash_word(at / 8, word, low, high);
    }
  }
#pragma unroll
  for (unsigned by = kWarp / 2; by != 0; by /= 2) {
    low += __shfl_down_sync(kEveryLane, low, by);
    high += __shfl_down_sync(kEveryLane, high, by);
  }
  if (threadIdx.x % kWarp == 0) a.parts[thread / kWarp] = {low, high};
}

extern "C" __global__ void penstock_occupy(const OccupyArguments a) {
  const uint64_t begin = nanoseconds_now();
  while (nanoseconds_now() - begin < a.nanoseconds) {
  }
}
