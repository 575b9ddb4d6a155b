#pragma once

#include <penstock/core/statistics.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock::bench {

/// Seconds that `body` takes.
template <typename Body>
double time(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One thing to time, among others that do the same work.
struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  [[nodiscard]] Summary summary() const { return summarize(seconds); }
};

/// Times the contenders in turn, `repetitions` times after `warm_up` rounds, so that a machine's drift
/// affects all of them. In each turn a contender runs `burst` times in a row, and all runs are timed. With 1,
/// its caches have gone cold while the others ran.
inline void race(std::vector<Contender>& contenders, std::size_t repetitions, std::size_t warm_up = 2,
                 std::size_t burst = 1) {
  for (std::size_t round = 0; round < warm_up + repetitions; ++round) {
    for (Contender& contender : contenders) {
      for (std::size_t i = 0; i < burst; ++i) {
        const double seconds = time(contender.run);
        if (round >= warm_up) contender.seconds.push_back(seconds);
      }
    }
  }
}

/// One line of the table: the result beside the goal.
struct Row {
  std::string work;
  std::string measured;
  std::string beside;  ///< the comparison, in the same run
  std::string ratio;
  std::string goal;
  bool met = false;
};

inline void print_table(const std::vector<Row>& rows) {
  fmt::print(
      "| work | penstock | beside, in the same run | ratio | goal | |\n| --- | --- | --- | --- | --- | --- "
      "|\n");
  for (const Row& row : rows) {
    fmt::print("| {} | {} | {} | {} | {} | {} |\n", row.work, row.measured, row.beside, row.ratio, row.goal,
               row.goal.empty() ? ""
               : row.met        ? "met"
                                : "not met");
  }
}

inline nlohmann::json to_json(const std::vector<Row>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (const Row& row : rows) {
    json.push_back({{"work", row.work},
                    {"penstock", row.measured},
                    {"beside", row.beside},
                    {"ratio", row.ratio},
                    {"goal", row.goal},
                    {"met", row.met}});
  }
  return json;
}

}  // namespace penstock::bench
