#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

/// Text as HTML shows it, also within an attribute.
[[nodiscard]] std::string escaped(std::string_view text);
/// The same, in which each number stays with its unit in one line, and `commands` stand out.
[[nodiscard]] std::string prose(std::string_view text);

/// A table of texts, which are escaped. The first row and the first column are heads.
[[nodiscard]] std::string table_html(const std::vector<std::vector<std::string>>& rows);

/// Replaces each {{name}} of the page's text by its part. The parts themselves are not searched.
[[nodiscard]] std::string filled(std::string_view page,
                                 const std::vector<std::pair<std::string_view, std::string>>& parts);

/// What a page has besides its text. `style` and `script` are its own.
struct PageParts {
  std::string style;    ///< that of all pages, and the page's own
  std::string scripts;  ///< the tools that all pages share, and the page's own script
};
[[nodiscard]] PageParts page_parts(std::string_view style, std::string_view script);

}  // namespace penstock::cli
