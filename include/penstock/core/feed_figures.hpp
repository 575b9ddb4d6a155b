#pragma once

#include <penstock/core/feed_statistics.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock {

enum class FigureUnit : std::uint8_t {
  count,
  bytes,
  seconds,
  share,
  gbps,
  bytes_per_second,
  per_second,
  name
};

/// "seconds"; "0 to 1" for a share, "10^9 bytes/s" for gbps.
[[nodiscard]] std::string_view figure_unit_name(FigureUnit unit) noexcept;

using FigureValue = std::variant<std::uint64_t, double, std::string_view>;

/// The feeds that have a figure.
enum class FigureOf : std::uint8_t { every_feed, own_loader, wrapped_loader };

/// One figure of FeedStatistics: all that is printed, written and documented about it.
struct FeedFigure {
  std::string_view name;  ///< in Python and in JSON
  FigureUnit unit = FigureUnit::count;
  std::string_view line;  ///< label of its line of text; indented if the line is a part of the one above
  std::string_view help;  ///< sentences
  FigureValue (*value)(const FeedStatistics&) = nullptr;
  /// Makes the text of the line. Only the first figure of a line has it. An empty text is not printed.
  std::string (*text)(const FeedStatistics&) = nullptr;
  FigureOf of = FigureOf::every_feed;

  [[nodiscard]] bool applies_to(const FeedStatistics& statistics) const noexcept {
    return of == FigureOf::every_feed || (of == FigureOf::wrapped_loader) == statistics.wraps_loader;
  }
};

/// Every figure, in the order of printing. Text, JSON, report, Python and the table in docs/statistics.md
/// come from it.
[[nodiscard]] std::span<const FeedFigure> feed_figures() noexcept;

/// One figure of BatchTimes.
struct BatchFigure {
  std::string_view name;  ///< in Python and in the report's data
  FigureValue (*value)(const BatchTimes&) = nullptr;
};
[[nodiscard]] std::span<const BatchFigure> batch_figures() noexcept;

struct FeedLine {
  std::string_view label;
  std::string text;  ///< empty: nothing to print
  std::vector<const FeedFigure*> figures;
};
/// The lines of the figures that apply, in the order of feed_figures().
[[nodiscard]] std::vector<FeedLine> feed_lines(const FeedStatistics& statistics);

}  // namespace penstock
