#pragma once

#include "doctor/read/recording_format.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::recorder {

/// A key that finds no slot in so many counts among the others.
inline constexpr std::size_t kMostLooks = 64;

/// Adds a record to the total of its key. `copied`: bytes that a call copies. Any thread may call it; nothing
/// waits, and nothing is allocated. If the program ends meanwhile, a total lacks a part of one record.
void add_to_totals(std::span<recording::Total> totals, const recording::Record& record,
                   std::uint64_t copied) noexcept;

/// Makes `first` `time` if that is earlier, or if `first` is 0.
void keep_earliest(std::int64_t& first, std::int64_t time) noexcept;

}  // namespace penstock::recorder
