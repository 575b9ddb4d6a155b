#pragma once

#include "doctor/report/trace_report.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// One GPU of one process of a distributed program. Times are of a step, in seconds.
struct RankFigures {
  std::string name;  ///< "rank 1", or what was examined
  double step = 0;
  double kernels = 0;
  double communication = 0;  ///< that no other kernel hides; waits for other ranks are part of it
  double copies = 0;         ///< exposed
  double waiting_for_data = 0;
  double other = 0;  ///< all other time
};

/// In the order of the ranks if the traces tell them all.
[[nodiscard]] std::vector<RankFigures> rank_figures(std::span<const TraceReport> reports);

/// Sentences: which rank's steps take longest, and which one the others wait for. A pure function.
[[nodiscard]] std::vector<std::string> compare_ranks(std::span<const RankFigures> ranks);

/// All reports, and behind them a table of the ranks with those sentences if two of them communicate.
[[nodiscard]] std::string reports_text(std::span<const TraceReport> reports, std::size_t columns);

}  // namespace penstock::cli
