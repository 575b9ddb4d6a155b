#pragma once

#include <penstock/core/function_ref.hpp>
#include <penstock/doctor/recording.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

/// Fills a span from an offset on, and returns the bytes read: fewer at the end.
using BytesAt = FunctionRef<std::size_t(std::uint64_t offset, std::span<std::byte> destination)>;

/// Reads the recording from `bytes`. `file` names it in errors.
[[nodiscard]] Recording parse_recording(BytesAt bytes, const std::string& file);

}  // namespace penstock
