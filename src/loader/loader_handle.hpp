#pragma once

#include <memory>
#include <string_view>
#include <utility>

/// What the loaders that users hold have in common: each is a handle to its state.
namespace penstock {

/// Throws DeviceError for a loader's call in a child of fork. `devices`: "device" or "devices".
[[noreturn]] void refuse_forked_loader(const char* loader, std::string_view devices);

/// Closes a loader that goes. Null: it was moved from.
template <typename State>
void let_go(std::shared_ptr<State> state) noexcept {
  if (state == nullptr) return;
  if (state->is_forked()) {
    // A forked child has neither the threads nor the locks that closing needs, so the state is leaked.
    static_cast<void>(new std::shared_ptr<State>(std::move(state)));
    return;
  }
  try {
    state->close();
  } catch (...) {  // a failed device does no more work
  }
}

}  // namespace penstock
