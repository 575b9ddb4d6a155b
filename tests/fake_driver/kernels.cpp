#include "device/cuda/kernel_arguments.hpp"
#include "state.hpp"

// clang-format off: the second needs the first
#include "own_kernels/gpu.hpp"
#include "device/cuda/render_pixel.hpp"
#include "device/hash_word.hpp"
// clang-format on

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

/// The kernels as plain loops, one byte or element at a time, for comparison with the GPU's.
namespace fake_cuda {

namespace {

using namespace penstock::cuda;

constexpr Result kMisalignedAddress = 716;

struct Piece {
  Address source;
  Address destination;
  std::uint64_t bytes;
};

template <typename T>
T load(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

Address address_of(const void* data) { return reinterpret_cast<Address>(data); }

/// The address at which the host reads the `count` values that a kernel reads at `data`; null if a kernel
/// would fault.
template <typename T>
const char* reads(const T* data, std::uint64_t count) {
  return static_cast<const char*>(memory().kernel_reads(address_of(data), count * sizeof(T)));
}

// A GPU accesses values of up to 16 bytes only at multiples of their size.
bool is_aligned(const void* data, std::uint64_t bytes) { return address_of(data) % bytes == 0; }

Result copy_pieces(const CopyPiecesArguments& a) {
  if (!is_aligned(a.pieces, 8)) return kMisalignedAddress;
  const char* const pieces = reads(static_cast<const Piece*>(a.pieces), a.count);
  if (pieces == nullptr) return kIllegalAddress;
  for (std::uint64_t i = 0; i < a.count; ++i) {
    const auto piece = load<Piece>(pieces + i * sizeof(Piece));
    if (piece.bytes == 0) continue;
    const void* const from = memory().kernel_reads(piece.source, piece.bytes);
    void* const to = memory().kernel_writes(piece.destination, piece.bytes);
    if (from == nullptr || to == nullptr) return kIllegalAddress;
    std::memcpy(to, from, piece.bytes);
  }
  return kSuccess;
}

// Calls `with_row(destination, source or null)` for each gathered row. Ends of rows are multiples of
// `from_unit` and `to_unit` bytes.
template <typename Arguments, typename WithRow>
Result for_rows(const Arguments& a, std::uint64_t from_unit, std::uint64_t to_unit, std::uint64_t row_bytes,
                std::uint64_t out_bytes, WithRow&& with_row) {
  if ((a.head_rows != 0 && !is_aligned(a.head, from_unit)) || !is_aligned(a.source, from_unit) ||
      !is_aligned(a.destination, to_unit) || row_bytes % from_unit != 0 || a.stride_bytes % from_unit != 0 ||
      !is_aligned(a.indices, 8)) {
    return kMisalignedAddress;
  }
  char* const to = static_cast<char*>(memory().kernel_writes(address_of(a.destination), a.count * out_bytes));
  const char* const indices = a.indices == nullptr ? nullptr : reads(a.indices, a.count);
  if (to == nullptr || (a.indices != nullptr && indices == nullptr)) return kIllegalAddress;
  for (std::uint64_t row = 0; row < a.count; ++row) {
    const std::uint64_t index = indices == nullptr ? row : load<std::uint64_t>(indices + row * 8);
    const char* from = nullptr;
    if (index < a.source_rows) {
      const Address base = address_of(index < a.head_rows ? a.head : a.source);
      from = static_cast<const char*>(memory().kernel_reads(base + index * a.stride_bytes, row_bytes));
      if (from == nullptr) return kIllegalAddress;
    }
    with_row(to + row * out_bytes, from);
  }
  return kSuccess;
}

Result gather_bytes(const GatherBytesArguments& a, bool aligned) {
  const std::uint64_t unit = aligned ? 16 : 1;
  return for_rows(a, unit, unit, a.row_bytes, a.row_bytes, [&](char* to, const char* from) {
    if (from == nullptr) {
      std::memset(to, 0, a.row_bytes);
    } else {
      std::memcpy(to, from, a.row_bytes);
    }
  });
}

std::size_t bytes_of(std::uint32_t type) {
  switch (type) {
    case kBoolean:
    case kUint8:
    case kInt8:
      return 1;
    case kUint16:
    case kInt16:
    case kFloat16:
    case kBfloat16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    default:
      return 8;
  }
}

// A small float of `exponent_bits` and `fraction_bits`, and back, by arithmetic on doubles.
double decode_small(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
}

std::uint32_t encode_small(float value, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  const std::uint32_t sign = std::signbit(value) ? 1u << (exponent_bits + fraction_bits) : 0;
  if (std::isnan(value)) return sign | infinity | 1u << (fraction_bits - 1);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const double magnitude = std::fabs(double{value});
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  // The fraction with its leading one, which carries into the exponent by itself.
  const double fraction = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  const auto bits = static_cast<std::uint32_t>(fraction) +
                    (static_cast<std::uint32_t>(exponent + bias - 1) << fraction_bits);
  return sign | std::min(bits, infinity);
}

float read_float(const char* at, std::uint32_t type) {
  switch (type) {
    case kUint8:
      return load<std::uint8_t>(at);
    case kInt8:
      return load<std::int8_t>(at);
    case kUint16:
      return load<std::uint16_t>(at);
    case kInt16:
      return load<std::int16_t>(at);
    case kFloat16:
      return static_cast<float>(decode_small(load<std::uint16_t>(at), 5, 10));
    case kBfloat16:
      return static_cast<float>(decode_small(load<std::uint16_t>(at), 8, 7));
    default:
      return load<float>(at);
  }
}

std::int64_t read_integer(const char* at, std::uint32_t type) {
  switch (type) {
    case kUint8:
      return load<std::uint8_t>(at);
    case kInt8:
      return load<std::int8_t>(at);
    case kUint16:
      return load<std::uint16_t>(at);
    case kInt16:
      return load<std::int16_t>(at);
    case kInt32:
      return load<std::int32_t>(at);
    default:
      return load<std::uint32_t>(at);
  }
}

void write_float(char* to, float value, std::uint32_t type) {
  if (type == kFloat32) {
    std::memcpy(to, &value, 4);
    return;
  }
  const auto bits =
      static_cast<std::uint16_t>(type == kFloat16 ? encode_small(value, 5, 10) : encode_small(value, 8, 7));
  std::memcpy(to, &bits, 2);
}

/// One element. `scale` and `shift` are the places of floats, or null.
void convert(const char* from, std::uint32_t from_type, char* to, std::uint32_t to_type, const char* scale,
             const char* shift) {
  if (to_type >= kFloat16) {
    volatile float value = read_float(from, from_type);  // rounded after each step
    if (scale != nullptr) value = value * load<float>(scale);
    if (shift != nullptr) value = value + load<float>(shift);
    write_float(to, value, to_type);
  } else {
    const std::int64_t value = read_integer(from, from_type);
    std::memcpy(to, &value, bytes_of(to_type));
  }
}

Result gather_widen(const GatherWidenArguments& a, bool aligned) {
  const std::size_t from_bytes = bytes_of(a.from);
  const std::size_t to_bytes = bytes_of(a.to);
  if (!is_aligned(a.scale, 4) || !is_aligned(a.shift, 4)) return kMisalignedAddress;
  const char* const scale = a.scale == nullptr ? nullptr : reads(a.scale, a.channels);
  const char* const shift = a.shift == nullptr ? nullptr : reads(a.shift, a.channels);
  if ((a.scale != nullptr && scale == nullptr) || (a.shift != nullptr && shift == nullptr)) {
    return kIllegalAddress;
  }
  return for_rows(a, aligned ? 16 : from_bytes, aligned ? 16 : to_bytes, a.row_elements * from_bytes,
                  a.row_elements * to_bytes, [&](char* row, const char* from) {
                    for (std::uint64_t i = 0; i < a.row_elements; ++i) {
                      char* const to = row + i * to_bytes;
                      if (from == nullptr) {
                        std::memset(to, 0, to_bytes);
                      } else {
                        const std::uint64_t channel = i / a.channel_elements % a.channels;
                        convert(from + i * from_bytes, a.from, to, a.to,
                                scale == nullptr ? nullptr : scale + channel * 4,
                                shift == nullptr ? nullptr : shift + channel * 4);
                      }
                    }
                  });
}

// One value for all rows. `from` is the segment of row 0 that the value begins in, of `segment_bytes`.
Result split_value(const SplitRowsArguments& a, const SplitValue& value, const char* from,
                   std::uint64_t segment, std::uint64_t segment_bytes) {
  const std::uint32_t from_type = value.types & 0xff;
  const std::uint32_t to_type = value.types >> 8 & 0xff;
  const bool scaled = (value.types >> 16 & 0xff) != 0;
  const std::size_t from_bytes = bytes_of(from_type);
  const std::size_t to_bytes = bytes_of(to_type);
  const std::uint64_t offset = value.row_offset - segment * kSplitSegment;
  const Address column = address_of(a.destination) + value.destination;
  if (offset % from_bytes != 0 || column % to_bytes != 0 || value.destination_stride % to_bytes != 0) {
    return kMisalignedAddress;
  }
  char* const to =
      static_cast<char*>(memory().kernel_writes(column, (a.count - 1) * value.destination_stride + to_bytes));
  if (to == nullptr || offset >= segment_bytes || offset + from_bytes > segment_bytes) return kIllegalAddress;
  for (std::uint64_t row = 0; row < a.count; ++row) {
    const char* const at = from + row * a.row_bytes + offset;
    char* const element = to + row * value.destination_stride;
    if (from_type == to_type && !scaled) {
      std::memcpy(element, at, from_bytes);
    } else {
      convert(at, from_type, element, to_type, scaled ? reinterpret_cast<const char*>(&value.scale) : nullptr,
              scaled ? reinterpret_cast<const char*>(&value.shift) : nullptr);
    }
  }
  return kSuccess;
}

Result split_rows(const SplitRowsArguments& a) {
  if (!is_aligned(a.rows, 16) || a.row_bytes % 16 != 0 || !is_aligned(a.values, 8) ||
      !is_aligned(a.firsts, 4)) {
    return kMisalignedAddress;
  }
  const std::uint64_t segments = (a.row_bytes + kSplitSegment - 1) / kSplitSegment;
  const char* const rows = reads(static_cast<const char*>(a.rows), a.count * a.row_bytes);
  const char* const firsts = reads(a.firsts, segments + 1);
  if (rows == nullptr || firsts == nullptr) return kIllegalAddress;
  for (std::uint64_t segment = 0; segment < segments; ++segment) {
    const std::uint64_t begin = segment * kSplitSegment;
    const auto end = load<std::uint32_t>(firsts + (segment + 1) * 4);
    for (auto i = load<std::uint32_t>(firsts + segment * 4); i != end; ++i) {
      const char* const value = reads(a.values + i, 1);
      if (value == nullptr) return kIllegalAddress;
      const Result result = split_value(a, load<SplitValue>(value), rows + begin, segment,
                                        std::min<std::uint64_t>(kSplitSegment, a.row_bytes - begin));
      if (result != kSuccess) return result;
    }
  }
  return kSuccess;
}

// One round's function of the other half: a 32-bit mixer with a key before each multiplication.
std::uint32_t mixed(std::uint32_t half, std::uint32_t key, std::uint32_t late_key) {
  half ^= key;
  half = (half ^ half >> 16) * 0x7FEB352Du ^ late_key;
  half = (half ^ half >> 15) * 0x846CA68Bu;
  return half ^ half >> 16;
}

Result fill_order(const FillOrderArguments& a) {
  if (!is_aligned(a.indices, 8)) return kMisalignedAddress;
  char* const indices = static_cast<char*>(memory().kernel_writes(address_of(a.indices), a.count * 8));
  if (indices == nullptr) return kIllegalAddress;
  for (std::uint64_t i = 0; i < a.count; ++i) {
    std::uint64_t value = (a.first + i * a.stride) % a.size;
    do {
      if (a.shuffled == 0) break;
      auto left = static_cast<std::uint32_t>(value >> a.right_bits);
      std::uint32_t right = static_cast<std::uint32_t>(value) & a.right_mask;
      for (unsigned round = 0; round < kFillOrderRounds; ++round) {
        const std::uint32_t change = mixed(round % 2 == 0 ? right : left, a.keys[round], a.late_keys[round]);
        (round % 2 == 0 ? left : right) ^= change & (round % 2 == 0 ? a.left_mask : a.right_mask);
      }
      value = std::uint64_t{left} << a.right_bits | right;
    } while (value >= a.size);
    std::memcpy(indices + i * 8, &value, sizeof value);
  }
  return kSuccess;
}

/// By the kernel's own source: tests compare its pixels with those that the host makes.
Result render(RenderArguments a) {
  if (!is_aligned(a.pictures, 8)) return kMisalignedAddress;
  const char* const pictures = reads(a.pictures, a.count);
  if (pictures == nullptr) return kIllegalAddress;
  std::vector<RenderedPicture> on_host(a.count);
  std::memcpy(on_host.data(), pictures, a.count * sizeof(RenderedPicture));
  for (RenderedPicture& p : on_host) {
    const auto rows = static_cast<std::uint64_t>(p.crop_top + p.crop_height - 1);
    const auto columns = static_cast<std::uint64_t>(p.crop_left + p.crop_width);
    p.pixels = reinterpret_cast<const std::uint8_t*>(reads(p.pixels, rows * p.pitch + 3 * columns));
    p.destination = memory().kernel_writes(address_of(p.destination), 3ull * a.width * a.height);
    if (p.pixels == nullptr || p.destination == nullptr) return kIllegalAddress;
  }
  a.pictures = on_host.data();
  for (std::uint64_t i = 0; i < std::uint64_t{a.count} * a.width * a.height; ++i) render_pixel(a, i);
  return kSuccess;
}

Result hash(const HashArguments& a, unsigned blocks) {
  if (!is_aligned(a.source, 16) || !is_aligned(a.parts, 16)) return kMisalignedAddress;
  const std::uint64_t parts = std::uint64_t{blocks} * kHashThreads / 32;
  const char* const from = reads(static_cast<const char*>(a.source), a.bytes);
  char* const to = static_cast<char*>(memory().kernel_writes(address_of(a.parts), parts * sizeof(HashPart)));
  if (from == nullptr || to == nullptr) return kIllegalAddress;
  HashPart sum{0, 0};
  for (std::uint64_t at = 0; at < a.bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, a.bytes - at < 8 ? a.bytes - at : 8);
    penstock::hash_word(at / 8, word, sum.low, sum.high);
  }
  std::memset(to, 0, parts * sizeof(HashPart));
  std::memcpy(to + (parts - 1) * sizeof(HashPart), &sum, sizeof sum);
  return kSuccess;
}

}  // namespace

Result run_kernel(const std::string& name, const void* arguments, unsigned blocks) {
  if (name == "penstock_copy_pieces") return copy_pieces(*static_cast<const CopyPiecesArguments*>(arguments));
  if (name.starts_with("penstock_gather_bytes")) {
    return gather_bytes(*static_cast<const GatherBytesArguments*>(arguments), name.ends_with("_aligned"));
  }
  if (name.starts_with("penstock_gather_widen")) {
    return gather_widen(*static_cast<const GatherWidenArguments*>(arguments),
                        name != "penstock_gather_widen");
  }
  if (name == "penstock_split_rows") return split_rows(*static_cast<const SplitRowsArguments*>(arguments));
  if (name == "penstock_fill_order") return fill_order(*static_cast<const FillOrderArguments*>(arguments));
  if (name == "penstock_render") return render(*static_cast<const RenderArguments*>(arguments));
  if (name == "penstock_hash") return hash(*static_cast<const HashArguments*>(arguments), blocks);
  const auto& occupy = *static_cast<const OccupyArguments*>(arguments);
  std::this_thread::sleep_for(std::chrono::nanoseconds(occupy.nanoseconds));
  return kSuccess;
}

}  // namespace fake_cuda
