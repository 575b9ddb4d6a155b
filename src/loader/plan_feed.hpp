#pragma once

#include "loader/feed_facts.hpp"

#include <penstock/loader/feed_plan.hpp>

#include <cstddef>

namespace penstock {

/// Copy streams that batches use in turn, so that a batch's first bytes travel while the last bytes of the
/// batch before it arrive.
inline constexpr std::size_t kCopyStreams = 2;

/// Decides how each field travels, which samples are resident, and how slots and staging memory are laid out.
/// A pure function of its arguments. If a lock, a copy or memory is refused later, the refusal becomes a
/// fact, and the plan is made again.
///
/// Throws InvalidArgument if options do not fit the fields, or a field cannot take the gather path that was
/// asked for. Throws Unsupported if the pages that such a path needs cannot be locked. Throws OutOfMemory if
/// the budget is too small for one batch, for the residency, or for the path that was asked for; and if it is
/// too small for rows, while fields have gaps between their samples: copy these, and plan without rows.
[[nodiscard]] FeedPlan plan_feed(const FeedFacts& facts, const LoaderOptions& options,
                                 const LinkProfile& profile);

}  // namespace penstock
