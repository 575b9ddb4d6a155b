#include "doctor/timeline/place_name.hpp"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace penstock {

std::optional<PlaceName> parse_place_name(std::string_view text) {
  constexpr std::string_view kBehind = "): ";
  // A folder may have a number in parentheses, too, but no colon after it.
  for (std::size_t open = text.find('('); open != std::string_view::npos; open = text.find('(', open + 1)) {
    std::uint64_t line = 0;
    const char* const end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data() + open + 1, end, line);
    const std::string_view rest(after, static_cast<std::size_t>(end - after));
    if (open == 0 || error != std::errc() || !rest.starts_with(kBehind)) continue;
    return PlaceName{text.substr(0, open), line, rest.substr(kBehind.size())};
  }
  return std::nullopt;
}

}  // namespace penstock
