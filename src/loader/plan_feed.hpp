#pragma once

#include "loader/feed_facts.hpp"

#include <penstock/loader/feed_plan.hpp>

#include <cstddef>

namespace penstock {

/// Streams that batches travel on in turn, so that the first bytes of a batch travel while the last ones of
/// the batch before it arrive.
inline constexpr std::size_t kCopyStreams = 2;

/// Decides how each field travels, what is resident, and how slots and staging memory are laid out. Pure: it
/// goes by its arguments alone. If a lock, a copy or memory is refused later, that becomes a fact, and the
/// plan is made again.
///
/// Throws InvalidArgument for options that do not fit the fields, and for a gather path that was asked for
/// and that a field cannot take; Unsupported if the pages that such a path needs cannot be locked; and
/// OutOfMemory if the budget holds no batch, or not the residency or the path asked for.
[[nodiscard]] FeedPlan plan_feed(const FeedFacts& facts, const LoaderOptions& options,
                                 const LinkProfile& profile);

}  // namespace penstock
