#include "cli/shared/terminal.hpp"

#include "cli/shared/output.hpp"
#include "core/shared/printable.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::cli {

namespace {

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string padding(std::string_view text, std::size_t width) {
  const std::size_t taken = display_width(text);
  return std::string(width > taken ? width - taken : 0, ' ');
}

/// y at x, interpolated over the logarithm of x; negative outside the points.
double value_at(const PlotCurve& curve, double x) {
  const auto& points = curve.points;
  if (points.empty() || x < points.front().first * 0.999 || x > points.back().first * 1.001) return -1;
  const auto after =
      std::find_if(points.begin(), points.end(), [&](const auto& point) { return point.first >= x; });
  if (after == points.end()) return points.back().second;
  if (after == points.begin()) return after->second;
  const auto& [x0, y0] = *std::prev(after);
  const auto& [x1, y1] = *after;
  return y0 + (y1 - y0) * std::log(x / x0) / std::log(x1 / x0);
}

/// A round number at or above `value`: 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten.
double round_up(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double step : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (step * power >= value) return step * power;
  }
  return 10 * power;
}

constexpr std::array<std::string_view, 6> kUnicodeMarks{"●", "▲", "■", "○", "△", "□"};
constexpr std::array<std::string_view, 6> kAsciiMarks{"*", "^", "#", "o", "+", "x"};
constexpr std::size_t kMarginWidth = 7;

/// The labels of sizes below the axis, as many as there is room for.
std::string size_axis(double low, double high, std::size_t width) {
  std::string line(kMarginWidth + width + 8, ' ');
  std::size_t taken = 0;
  for (double x = low; x <= high * 1.001; x *= 4) {
    const double part = high > low ? std::log(x / low) / std::log(high / low) : 0;
    const auto at =
        kMarginWidth + static_cast<std::size_t>(std::lround(part * static_cast<double>(width - 1)));
    const std::string label = format_bytes(static_cast<std::uint64_t>(x));
    const std::size_t begin = at > label.size() / 2 ? at - label.size() / 2 : 0;
    if (begin < taken || begin + label.size() > line.size()) continue;
    line.replace(begin, label.size(), label);
    taken = begin + label.size() + 2;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang) {
  for (const char* name : {lc_all, lc_ctype, lang}) {
    if (name == nullptr || *name == '\0') continue;
    std::string lower;
    for (const char c : std::string_view(name)) {
      lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  }
  return false;
}

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string paragraph(std::string_view text, const Look& look, std::size_t indent, std::size_t more) {
  std::string out;
  std::string line(indent, ' ');
  bool begun = false;
  while (!text.empty()) {
    const std::size_t size = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, size);
    text.remove_prefix(std::min(size + 1, text.size()));
    if (begun && display_width(line) + 1 + display_width(word) > look.columns) {
      out += line + "\n";
      line = std::string(indent + more, ' ');
      begun = false;
    }
    if (begun) line += ' ';
    line += word;
    begun = true;
  }
  return out + line + "\n";
}

std::string Table::text(const Look& look) const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> widths(columns);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < std::min(columns, row.size()); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  }
  std::string text;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < columns; ++i) {
      const std::string cell = i < rows_[r].size() ? rows_[r][i] : std::string();
      line += i == 0 ? cell + padding(cell, widths[i]) : "  " + padding(cell, widths[i]) + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r != 0) continue;
    for (std::size_t i = 0; i < columns; ++i) {
      text += (i == 0 ? "" : "  ") + repeated(look.unicode ? "─" : "-", widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string plot(const std::vector<PlotCurve>& curves, std::string_view unit, const Look& look) {
  constexpr std::size_t kHeight = 16;
  const std::size_t width = std::clamp<std::size_t>(look.columns, 40, 100) - kMarginWidth - 4;
  double low = 0, high = 0, top = 0;
  for (const auto& curve : curves) {
    if (curve.points.empty()) continue;
    low = low == 0 ? curve.points.front().first : std::min(low, curve.points.front().first);
    high = std::max(high, curve.points.back().first);
    for (const auto& point : curve.points) top = std::max(top, point.second);
  }
  if (high <= 0) return {};
  top = round_up(top);

  const auto& marks = look.unicode ? kUnicodeMarks : kAsciiMarks;
  std::vector<std::vector<std::string_view>> cells(kHeight, std::vector<std::string_view>(width, " "));
  for (std::size_t c = curves.size(); c-- > 0;) {
    for (std::size_t x = 0; x < width; ++x) {
      const double part = static_cast<double>(x) / static_cast<double>(width - 1);
      const double value = value_at(curves[c], low * std::pow(high / low, part));
      if (value < 0) continue;
      const auto up = static_cast<std::size_t>(std::lround(value / top * (kHeight - 1)));
      cells[kHeight - 1 - std::min(up, kHeight - 1)][x] = marks[c % marks.size()];
    }
  }

  std::string text = fmt::format("{:>{}}\n", unit, kMarginWidth - 2);
  for (std::size_t y = 0; y < kHeight; ++y) {
    const double value = top * static_cast<double>(kHeight - 1 - y) / (kHeight - 1);
    std::string line = y % 3 == 0 ? fmt::format("{:>{}.{}f} ", value, kMarginWidth - 2, top < 10 ? 1 : 0)
                                  : std::string(kMarginWidth - 1, ' ');
    line += look.unicode ? (y % 3 == 0 ? "┤" : "│") : (y % 3 == 0 ? "+" : "|");
    for (const std::string_view cell : cells[y]) line += cell;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text += std::string(kMarginWidth - 1, ' ') + (look.unicode ? "└" : "+") +
          repeated(look.unicode ? "─" : "-", width) + "\n" + size_axis(low, high, width) + "\n";
  std::string legend(kMarginWidth - 1, ' ');
  for (std::size_t c = 0; c < curves.size(); ++c) {
    legend += fmt::format(" {} {} ", marks[c % marks.size()], curves[c].name);
  }
  legend.erase(legend.find_last_not_of(' ') + 1);
  return text + legend + "\n";
}

std::string Progress::line(double fraction, std::string_view step, const Look& look) {
  constexpr std::array<std::string_view, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  fraction = std::clamp(fraction, 0.0, 1.0);
  constexpr std::size_t kShortest = 10;
  constexpr std::size_t kAround = 10;  // the bar's ends, the percentage, and a column that stays free
  const std::size_t taken = display_width(step) + kAround;
  const std::size_t room = look.columns > taken ? look.columns - taken : 0;
  const std::size_t width =
      std::clamp(room, kShortest, std::clamp<std::size_t>(look.columns / 3, kShortest, 40));
  const auto eighths = static_cast<std::size_t>(fraction * static_cast<double>(8 * width));
  std::string bar = repeated(look.unicode ? "█" : "#", eighths / 8);
  if (look.unicode) bar += kEighths[eighths % 8];
  const std::string rest = padding(bar, width);
  std::string text = fmt::format("{}{}{}{} {:3.0f} % {}", look.unicode ? "▕" : "[", bar, rest,
                                 look.unicode ? "▏" : "]", 100 * fraction, step);
  while (display_width(text) >= std::max<std::size_t>(look.columns, 20)) text.pop_back();
  return text;
}

void Progress::update(double fraction, std::string_view step) {
  if (terminal_) {
    draw(fmt::format("\r{}\033[K", line(fraction, printable(step), look_)));
    drawn_ = true;
  } else if (step != step_) {
    say(fmt::format("{:3.0f} % {}\n", 100 * fraction, step));
  }
  step_ = step;
}

void Progress::clear() {
  if (!drawn_) return;
  draw("\r\033[K");
  drawn_ = false;
}

}  // namespace penstock::cli
