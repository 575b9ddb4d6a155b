#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

/// A place in a program as reports name it, "train.py(14): to_gpu", in its parts. They point into the text.
struct PlaceName {
  std::string_view file;
  std::uint64_t line = 0;
  std::string_view function;
};

/// nullopt: it has no file, or no line.
[[nodiscard]] std::optional<PlaceName> parse_place_name(std::string_view text);

}  // namespace penstock
