#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <string>
#include <vector>

namespace penstock::cli {

/// The options that `--to`, `--scale` and `--shift` give to the dataset's fields. A value without a field's
/// name is for every field that is not a scalar and can be widened to that type. Throws UsageError.
[[nodiscard]] std::vector<FieldOptions> field_options(const Dataset& dataset,
                                                      const std::vector<std::string>& to,
                                                      const std::vector<std::string>& scale,
                                                      const std::vector<std::string>& shift);

}  // namespace penstock::cli
