#pragma once

namespace penstock {

/// Calls `wait`, which blocks the host until the device is done with something. For places where nobody can
/// be told of a failure. Tries twice, since the first call may only report a failure of earlier work. False
/// if both threw.
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
