#include "data/array_bytes.hpp"

#include "data/malformed.hpp"

#include <algorithm>

namespace penstock {

std::uint64_t little_endian(std::span<const std::byte> bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i - 1]);
  return value;
}

std::uint64_t tensor_bytes(std::uint64_t element_bits, const Shape& shape, std::uint64_t offset,
                           const std::string& file) {
  std::uint64_t bits = element_bits;
  for (const std::size_t extent : shape) {
    if (__builtin_mul_overflow(bits, std::max(std::uint64_t{extent}, std::uint64_t{1}), &bits) ||
        bits > (std::uint64_t{1} << 62)) {
      throw_malformed(file, offset, "an array that fits the address space",
                      "the shape " + format_shape(shape));
    }
  }
  if (std::ranges::find(shape, std::size_t{0}) != shape.end()) return 0;
  if (bits % 8 != 0)
    throw_malformed(file, offset, "elements that fill whole bytes", fmt::format("{} bits", bits));
  return bits / 8;
}

std::uint64_t array_bytes(DType dtype, const Shape& shape, std::uint64_t offset, const std::string& file) {
  if (shape.empty()) throw_malformed(file, offset, "a first axis that counts samples", "a scalar");
  if (shape.front() == 0) throw_malformed(file, offset, "at least one sample", "zero samples");
  const std::uint64_t bytes = tensor_bytes(8 * dtype_bytes(dtype), shape, offset, file);
  if (bytes == 0) {
    throw_malformed(file, offset, "samples of at least one byte", "the shape " + format_shape(shape));
  }
  return bytes;
}

}  // namespace penstock
