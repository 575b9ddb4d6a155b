#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

/// The number that `bytes`, at most eight, hold with the least significant one first.
[[nodiscard]] std::uint64_t little_endian(std::span<const std::byte> bytes) noexcept;

/// Bytes of an array whose first axis counts samples. Throws Error, naming `file` and `offset`, where its
/// header states a shape, for an array that has no such axis, holds nothing or overflows.
[[nodiscard]] std::uint64_t array_bytes(DType dtype, const Shape& shape, std::uint64_t offset,
                                        const std::string& file);

}  // namespace penstock
