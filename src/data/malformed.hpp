#pragma once

#include <penstock/core/error.hpp>
#include <penstock/data/dataset.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace penstock {

/// Refuses a file: says where, what was expected there, and what was found instead.
[[noreturn]] inline void throw_malformed(const std::string& file, std::uint64_t offset,
                                         std::string_view expected, std::string_view found,
                                         std::source_location where = std::source_location::current()) {
  throw Error(fmt::format("{}, byte {}: expected {}, found {}.", file, offset, expected, found), where);
}

/// Refuses a field whose samples have no bytes.
[[noreturn]] inline void throw_zero_bytes(const Field& field) {
  throw InvalidArgument(fmt::format("A sample of field '{}' is {} of {}: zero bytes. Leave the field out.",
                                    field.name, format_shape(field.shape), dtype_name(field.dtype)));
}

}  // namespace penstock
