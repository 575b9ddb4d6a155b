#pragma once

#include "loader/feed_facts.hpp"

#include <penstock/data/rows.hpp>
#include <penstock/device/requests.hpp>
#include <penstock/loader/feed_plan.hpp>

#include <cstddef>
#include <vector>

namespace penstock {

/// Of a column's sample. Samples of more than a cache line are read well one by one.
inline constexpr std::size_t kMostColumnBytes = 64;

/// The fields that become columns: those with the smallest samples, as the budget allows, in the dataset's
/// order. Empty if rows do not help, are not allowed, or were refused. A pure function.
[[nodiscard]] std::vector<std::size_t> choose_columns(const FeedFacts& facts, const LoaderOptions& options);

/// Makes columns of the fields that choose_columns names, and adds the rows to the plan and to the facts. A
/// pure function.
void plan_rows(FeedPlan& plan, FeedFacts& facts, const LoaderOptions& options);

/// The columns' values in a row, as Stream::split_rows takes them. Destinations count from a slot's
/// beginning.
[[nodiscard]] std::vector<RowValue> row_values(const FeedPlan& plan);

/// `dataset` with the rows as one more field, if the plan has rows. They are read from the columns anew in
/// each gather.
[[nodiscard]] Dataset with_rows(const Dataset& dataset, const FeedPlan& plan);

/// The same, where `rows` holds the rows of all samples. Both the rows and the columns are read there, so
/// that the arrays that they were made of can be freed. `keep_alive` keeps `rows` alive.
[[nodiscard]] Dataset with_rows(const Dataset& dataset, const FeedPlan& plan, std::span<const std::byte> rows,
                                const std::shared_ptr<const void>& keep_alive);

}  // namespace penstock
