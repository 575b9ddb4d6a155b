#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>

namespace penstock {

/// Processors that several teams of threads share. Those that work at the same time get equal parts: more
/// threads than processors hold each other up. Thread-safe; nothing blocks.
class SharedProcessors {
 public:
  /// That a team may have, however few processors there are. Two teams on 4 processors moved a quarter more
  /// with 3 threads each, which are 2 workers and who they work for, than with 2.
  static constexpr std::size_t kLeastWorkers = 2;

  explicit SharedProcessors(std::size_t processors) noexcept : processors_(processors) {}

  /// From now on these are the processors of `processes`, at least 1, which all work.
  void divide(std::size_t processes) noexcept { processes_.store(std::max<std::size_t>(processes, 1)); }

  void team_begins() noexcept { teams_.fetch_add(1); }
  void team_ends() noexcept { teams_.fetch_sub(1); }

  /// Workers that each team may have now, beside the thread that they work for.
  [[nodiscard]] std::size_t workers() const noexcept {
    const std::size_t sharers = processes_.load() * std::max<std::size_t>(teams_.load(), 1);
    if (sharers == 1) return std::numeric_limits<std::size_t>::max();
    return std::max(kLeastWorkers + 1, processors_ / sharers) - 1;
  }

 private:
  const std::size_t processors_;
  std::atomic<std::size_t> processes_{1};
  std::atomic<std::size_t> teams_{0};  ///< that work now
};

}  // namespace penstock
