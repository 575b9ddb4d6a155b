#pragma once

namespace penstock {

/// Calls `wait`, which blocks the host until the device is done with something, where nobody can be told of a
/// failure. The first failure may be that of earlier work coming to light, after which the wait itself
/// succeeds: so it is tried twice. False if neither call returned.
template <typename Wait>
[[nodiscard]] bool wait_quietly(Wait&& wait) noexcept {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      wait();
      return true;
    } catch (...) {
    }
  }
  return false;
}

}  // namespace penstock
