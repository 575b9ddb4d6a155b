#include "cli/shared/terminal.hpp"

#include "cli/shared/output.hpp"
#include "core/shared/printable.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>

namespace penstock::cli {

namespace {

std::string padding(std::string_view text, std::size_t width) {
  const std::size_t taken = display_width(text);
  return std::string(width > taken ? width - taken : 0, ' ');
}

}  // namespace

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string paragraph(std::string_view text, std::size_t columns, std::size_t indent, std::size_t more) {
  std::string out;
  std::string line(indent, ' ');
  bool begun = false;
  while (!text.empty()) {
    const std::size_t size = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, size);
    text.remove_prefix(std::min(size + 1, text.size()));
    if (begun && display_width(line) + 1 + display_width(word) > columns) {
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

std::string Table::text() const {
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
    for (std::size_t i = 0; i < columns; ++i) text += (i == 0 ? "" : "  ") + std::string(widths[i], '-');
    text += "\n";
  }
  return text;
}

std::string Progress::line(double fraction, std::string_view step, std::size_t columns) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  constexpr std::size_t kShortest = 10;
  constexpr std::size_t kAround = 10;  // the bar's ends, the percentage, and a column that stays free
  const std::size_t taken = display_width(step) + kAround;
  const std::size_t room = columns > taken ? columns - taken : 0;
  const std::size_t width = std::clamp(room, kShortest, std::clamp<std::size_t>(columns / 3, kShortest, 40));
  const std::string bar(static_cast<std::size_t>(fraction * static_cast<double>(width)), '#');
  std::string text = fmt::format("[{:{}}] {:3.0f} % {}", bar, width, 100 * fraction, step);
  while (display_width(text) >= std::max<std::size_t>(columns, 20)) text.pop_back();
  return text;
}

void Progress::update(double fraction, std::string_view step) {
  if (terminal_) {
    draw(fmt::format("\r{}\033[K", line(fraction, printable(step), columns_)));
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
