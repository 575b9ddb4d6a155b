#include "doctor/report/place_json.hpp"

#include "doctor/timeline/place_name.hpp"

#include <nlohmann/json.hpp>

namespace penstock::cli {

nlohmann::ordered_json place_json(std::string_view function) {
  nlohmann::ordered_json place{{"function", function}, {"file", nullptr}, {"line", nullptr}};
  if (const auto name = parse_place_name(function)) {
    place["file"] = name->file;
    place["line"] = name->line;
  }
  return place;
}

}  // namespace penstock::cli
