#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <string>
#include <vector>

namespace penstock::cli {

/// The options that `--to` gives to the dataset's fields. A type without a field's name is for every field
/// that is not a scalar and can be widened to it. Throws UsageError. Whether a field that it names is there,
/// and can be widened, the loader checks.
[[nodiscard]] std::vector<FieldOptions> field_options(const Dataset& dataset,
                                                      const std::vector<std::string>& to);

}  // namespace penstock::cli
