#include "cli/shared/page.hpp"

#include "page_texts.hpp"

#include <fmt/format.h>

namespace penstock::cli {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string prose(std::string_view text) {
  std::string html;
  for (const char c : escaped(text)) {
    const bool is_after_digit = !html.empty() && html.back() >= '0' && html.back() <= '9';
    html += c == ' ' && is_after_digit ? "&nbsp;" : std::string(1, c);
  }
  bool is_code = false;
  for (std::size_t at = html.find('`'); at != std::string::npos; at = html.find('`', at)) {
    html.replace(at, 1, is_code ? "</code>" : "<code>");
    is_code = !is_code;
  }
  return html + (is_code ? "</code>" : "");
}

std::string table_html(const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<table class=\"numbers\"><thead>";
  for (std::size_t row = 0; row < rows.size(); ++row) {
    html += "<tr>";
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      html += fmt::format("<{0}>{1}</{0}>", row == 0 || i == 0 ? "th" : "td", escaped(rows[row][i]));
    }
    html += row == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
  }
  return html + "</tbody></table>";
}

std::string filled(std::string_view page,
                   const std::vector<std::pair<std::string_view, std::string>>& parts) {
  std::string result;
  while (true) {
    const std::size_t begin = page.find("{{");
    result += page.substr(0, begin);
    if (begin == std::string_view::npos) return result;
    const std::size_t end = page.find("}}", begin);
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    for (const auto& [part, text] : parts) {
      if (part == name) result += text;
    }
    page.remove_prefix(end + 2);
  }
}

PageParts page_parts(std::string_view style, std::string_view script) {
  return {fmt::format("{}{}", kPageStyle, style),
          fmt::format("<script>\n{}{}</script>", kToolsScript, script)};
}

}  // namespace penstock::cli
