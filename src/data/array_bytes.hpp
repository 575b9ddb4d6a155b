#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

/// The number in `bytes`, which are at most eight and little-endian.
[[nodiscard]] std::uint64_t little_endian(std::span<const std::byte> bytes) noexcept;

/// Bytes of a tensor, which may be a scalar or have no elements. Throws Error if it is too large, also if
/// only an extent of 0 makes it small, and if its elements do not fill whole bytes. The error names `file`
/// and `offset`, where the header states the shape.
[[nodiscard]] std::uint64_t tensor_bytes(std::uint64_t element_bits, const Shape& shape, std::uint64_t offset,
                                         const std::string& file);

/// Bytes of an array whose first axis counts samples. Throws Error if there is no such axis, or if the array
/// is empty or too large, as tensor_bytes does.
[[nodiscard]] std::uint64_t array_bytes(DType dtype, const Shape& shape, std::uint64_t offset,
                                        const std::string& file);

}  // namespace penstock
