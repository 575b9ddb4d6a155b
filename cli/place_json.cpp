#include "place_json.hpp"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>

namespace penstock::cli {

nlohmann::ordered_json place_json(std::string_view function) {
  nlohmann::ordered_json place{{"function", function}, {"file", nullptr}, {"line", nullptr}};
  // A folder may have a number in parentheses, too, but no colon after it.
  for (std::size_t open = function.find('('); open != std::string_view::npos;
       open = function.find('(', open + 1)) {
    std::uint64_t line = 0;
    const char* const end = function.data() + function.size();
    const auto [after, error] = std::from_chars(function.data() + open + 1, end, line);
    const std::string_view rest(after, static_cast<std::size_t>(end - after));
    if (open == 0 || error != std::errc() || !rest.starts_with("): ")) continue;
    place["file"] = function.substr(0, open);
    place["line"] = line;
    break;
  }
  return place;
}

}  // namespace penstock::cli
