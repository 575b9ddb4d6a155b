#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace penstock::cli {

/// Where a call is, from a text such as "train.py(12): main": the text as `function`, and its `file` and
/// `line`. These are null if it has none, as an address or an unknown place.
[[nodiscard]] nlohmann::ordered_json place_json(std::string_view function);

}  // namespace penstock::cli
