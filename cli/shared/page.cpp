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

std::string note_html(std::string_view kind, std::string_view text) {
  return fmt::format("<p class=\"note {}\">{}</p>\n", kind, prose(text));
}

std::string bar_html(const std::vector<BarPart>& parts) {
  constexpr double kRoom = 0.06;  // of the bar, for a figure in it
  std::string bar;
  std::string legend;
  for (const auto& [colour, name, share, time] : parts) {
    if (share <= 0) continue;
    bar += fmt::format("<i class=\"{}\" style=\"width:{:.3f}%\">{}</i>", colour, 100 * share,
                       share >= kRoom ? fmt::format("{:.0f} %", 100 * share) : "");
    legend += fmt::format("<span><i class=\"{}\"></i>{} <b>{}</b>, {:.1f}&nbsp;%</span>\n", colour, name,
                          prose(time), 100 * share);
  }
  if (bar.empty()) return "";
  return fmt::format("<div class=\"bar\" aria-hidden=\"true\">{}</div>\n<div class=\"legend\">{}</div>\n",
                     bar, legend);
}

std::string section_html(std::string_view heading, std::string_view explanation, std::string_view body) {
  return fmt::format(
      "<section>\n<h2>{}</h2>\n{}{}</section>\n", escaped(heading),
      explanation.empty() ? "" : fmt::format("<p class=\"explain\">{}</p>\n", prose(explanation)), body);
}

std::string page_html(const Page& page) {
  constexpr std::string_view kPage = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{command}: {title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{command} &middot; {title}</p>
<h1>{sentence}</h1>
<p class="advice">{advice}</p>
{head}</header>
{sections}</main>
</body>
</html>
)";
  return fmt::format(kPage, fmt::arg("command", page.command), fmt::arg("title", escaped(page.title)),
                     fmt::arg("style", kPageStyle), fmt::arg("sentence", prose(page.sentence)),
                     fmt::arg("advice", prose(page.advice)), fmt::arg("head", page.head),
                     fmt::arg("sections", page.sections));
}

}  // namespace penstock::cli
