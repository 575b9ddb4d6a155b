#pragma once

#include <chrono>
#include <thread>

namespace penstock::testing {

/// True once `condition` holds. Gives up after a time, since in a failing program it may never hold.
template <typename Condition>
[[nodiscard]] bool comes_true(Condition&& condition,
                              std::chrono::seconds within = std::chrono::seconds(120)) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace penstock::testing
