#include <penstock/core/error.hpp>
#include <penstock/core/replace_file.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>

namespace penstock {

void LinkProfile::save(const std::filesystem::path& file) const {
  const std::filesystem::path target = file.has_parent_path() ? file : std::filesystem::path(".") / file;
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) {
    throw Error(fmt::format("The link profile cannot be stored at {}: its directory cannot be made ({}).",
                            file.string(), error.message()));
  }
  const std::string text = to_json();
  replace_file(target, std::as_bytes(std::span(text)));
}

}  // namespace penstock
