#pragma once

#include "loader/batch_line.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/destination.hpp>

#include <memory>
#include <string>

namespace penstock {

/// Decides what fills the slots of a destination. Throws as Loader.
[[nodiscard]] std::shared_ptr<BatchLine> make_line(Dataset dataset, Destination destination,
                                                   LoaderOptions options);

/// The line of a rank whose processes read each other's parts. Null, in all of them, if they cannot, and
/// `why`: it takes memory for parts, and none for batches, before that is known.
[[nodiscard]] std::shared_ptr<BatchLine> make_line_of_parts(Dataset dataset, Destination rank,
                                                            LoaderOptions options, std::string& why);

}  // namespace penstock
