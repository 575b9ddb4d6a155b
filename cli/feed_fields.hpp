#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <string>
#include <vector>

namespace penstock::cli {

/// What `--to`, `--scale` and `--shift` ask of the dataset's fields. Values without a field's name speak of
/// every field that is no scalar and can be widened to that type. Throws UsageError.
[[nodiscard]] std::vector<FieldOptions> field_options(const Dataset& dataset,
                                                      const std::vector<std::string>& to,
                                                      const std::vector<std::string>& scale,
                                                      const std::vector<std::string>& shift);

}  // namespace penstock::cli
