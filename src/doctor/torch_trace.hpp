#pragma once

#include "doctor/json_reader.hpp"

#include <penstock/doctor/timeline.hpp>

#include <string>

namespace penstock {

/// `read_torch_trace` for text that is unpacked already. `file` names it in errors.
[[nodiscard]] Timeline parse_torch_trace(TextSource source, const std::string& file);

}  // namespace penstock
