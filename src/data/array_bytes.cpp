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

std::uint64_t tensor_bytes(DType dtype, const Shape& shape, std::uint64_t offset, const std::string& file) {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::size_t extent : shape) {
    if (__builtin_mul_overflow(bytes, std::max(std::uint64_t{extent}, std::uint64_t{1}), &bytes) ||
        bytes > (std::uint64_t{1} << 62)) {
      throw_malformed(file, offset, "an array that fits the address space",
                      "the shape " + format_shape(shape));
    }
  }
  return std::ranges::find(shape, std::size_t{0}) != shape.end() ? 0 : bytes;
}

std::uint64_t array_bytes(DType dtype, const Shape& shape, std::uint64_t offset, const std::string& file) {
  if (shape.empty()) throw_malformed(file, offset, "a first axis that counts samples", "a scalar");
  if (shape.front() == 0) throw_malformed(file, offset, "at least one sample", "zero samples");
  const std::uint64_t bytes = tensor_bytes(dtype, shape, offset, file);
  if (bytes == 0) {
    throw_malformed(file, offset, "samples of at least one byte", "the shape " + format_shape(shape));
  }
  return bytes;
}

}  // namespace penstock
