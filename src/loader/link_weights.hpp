#pragma once

#include <penstock/memory/process_board.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <optional>
#include <vector>

namespace penstock {

/// The weights of the processes' parts of a batch, by rank: the ceilings of their measured profiles. They are
/// equal if a process has no measured profile, and also if no link is more than 5 % slower than the fastest:
/// profiles of like links differ by some percent. The same in all processes, which exchange their rates.
///
/// `profile`: of this process's link. All processes call it at once. Throws as ProcessBoard::exchange.
[[nodiscard]] std::vector<double> weights_of_links(const std::optional<LinkProfile>& profile,
                                                   ProcessBoard& board);

}  // namespace penstock
