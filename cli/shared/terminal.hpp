#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

/// Columns that UTF-8 text takes on a terminal. The text has no wide or combining characters.
[[nodiscard]] std::size_t display_width(std::string_view text);

/// The text in lines of at most so many columns, indented; all but the first by `more` in addition. Each line
/// has its newline.
[[nodiscard]] std::string paragraph(std::string_view text, std::size_t columns, std::size_t indent = 2,
                                    std::size_t more = 0);

/// Columns of the terminal of `descriptor`; 80 if it is not a terminal.
[[nodiscard]] std::size_t terminal_columns(int descriptor);

/// Columns of text. The first is aligned to the left, the others to the right, with two spaces between.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  /// As many cells as the header has; missing ones are empty.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// The header first.
  [[nodiscard]] const std::vector<std::vector<std::string>>& rows() const noexcept { return rows_; }
  /// Lines, each with its newline; a rule below the header.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Shows progress on stderr: a bar that is redrawn on a terminal, elsewhere a line for each step.
class Progress {
 public:
  Progress(bool terminal, std::size_t columns) : terminal_(terminal), columns_(columns) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double fraction, std::string_view step);
  /// Removes the bar from the terminal.
  void clear();

  /// The bar's line without a carriage return.
  [[nodiscard]] static std::string line(double fraction, std::string_view step, std::size_t columns);

 private:
  const bool terminal_;
  const std::size_t columns_;
  bool drawn_ = false;
  std::string step_;
};

}  // namespace penstock::cli
