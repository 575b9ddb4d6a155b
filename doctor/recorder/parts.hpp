#pragma once

#include "doctor/read/recording_format.hpp"

#include <cstdint>
#include <string_view>

namespace penstock::recorder {

/// What is recorded. All of it, unless PENSTOCK_RECORD_WITHOUT names some, with commas between them.
struct Parts {
  bool kernels = true;
  bool launches = true;  ///< the calls
  bool calls = true;     ///< all others
  bool lines = true;     ///< the places of calls
  bool contents = true;  ///< of copies
};

[[nodiscard]] inline Parts parts_without(std::string_view list) noexcept {
  Parts parts;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(name.size() < list.size() ? name.size() + 1 : list.size());
    if (name == "kernels") parts.kernels = false;
    if (name == "launches") parts.launches = false;
    if (name == "calls") parts.calls = false;
    if (name == "lines") parts.lines = false;
    if (name == "contents") parts.contents = false;
  }
  return parts;
}

/// As the header of a recording has it.
[[nodiscard]] inline std::uint32_t bits_left_out(const Parts& parts) noexcept {
  return (parts.kernels ? 0U : recording::kWithoutKernels) |
         (parts.launches ? 0U : recording::kWithoutLaunches) | (parts.calls ? 0U : recording::kWithoutCalls);
}

}  // namespace penstock::recorder
