#pragma once

#include <chrono>
#include <thread>

namespace penstock::testing {

/// True if `condition` holds soon. Gives up after a time, since in a failing program it may never hold.
template <typename Condition>
[[nodiscard]] bool comes_true(Condition&& condition,
                              std::chrono::seconds within = std::chrono::seconds(120)) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return condition();
}

}  // namespace penstock::testing
