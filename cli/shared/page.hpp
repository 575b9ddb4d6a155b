#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

/// Text as HTML shows it, also within an attribute.
[[nodiscard]] std::string escaped(std::string_view text);
/// The same, in which each number stays with its unit in one line, and `commands` stand out.
[[nodiscard]] std::string prose(std::string_view text);

/// Replaces each {{name}} of the page's text by its part. The parts themselves are not searched.
[[nodiscard]] std::string filled(std::string_view page,
                                 const std::vector<std::pair<std::string_view, std::string>>& parts);

/// The text of the first chart library that exists; nullopt if none does.
[[nodiscard]] std::optional<std::string> chart_library(const std::vector<std::filesystem::path>& places);

/// What a page has besides its text. `style` and `script` are its own.
struct PageParts {
  std::string
      style;  ///< that of all pages, and the page's own; without a chart library it hides the pictures
  std::string scripts;  ///< the library, the tools that all pages share, and the page's own script
};
[[nodiscard]] PageParts page_parts(const std::optional<std::string>& chart_library, std::string_view style,
                                   std::string_view script);
/// The note of a page without them.
inline constexpr std::string_view kNoPictures =
    "This page has no pictures because d3 was not found. Debian and Ubuntu have it as node-d3; or let "
    "PENSTOCK_D3 "
    "name a d3.min.js.";
/// What the terminal says of it.
inline constexpr std::string_view kNoChartLibrary =
    "d3 was not found; install Debian's package node-d3, or let PENSTOCK_D3 name a d3.min.js";

}  // namespace penstock::cli
