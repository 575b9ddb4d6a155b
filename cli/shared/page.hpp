#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

/// Text as HTML shows it, also within an attribute.
[[nodiscard]] std::string escaped(std::string_view text);
/// The same, in which each number stays with its unit in one line, and `commands` stand out.
[[nodiscard]] std::string prose(std::string_view text);

/// A text in a box. `kind`: "good", "bad", or empty.
[[nodiscard]] std::string note_html(std::string_view kind, std::string_view text);

/// A part of a bar.
struct BarPart {
  std::string_view colour;  ///< a class of page.css
  std::string_view name;
  double share = 0;  ///< of the bar, from 0 to 1
  std::string time;
};
/// Parts side by side, and below them what they stand for. Parts of no share are left out. Empty without a
/// part.
[[nodiscard]] std::string bar_html(const std::vector<BarPart>& parts);

/// A part of the page. `explanation` may be empty. `body` is HTML.
[[nodiscard]] std::string section_html(std::string_view heading, std::string_view explanation,
                                       std::string_view body);

/// What a page says.
struct Page {
  std::string_view command;  ///< "penstock feed"
  std::string title;
  std::string sentence;
  std::string advice;
  std::string head;      ///< HTML: notes, and how the page was made
  std::string sections;  ///< HTML
};
/// One HTML page that loads nothing, and has no script.
[[nodiscard]] std::string page_html(const Page& page);

}  // namespace penstock::cli
