#pragma once

#include <functional>
#include <thread>

namespace penstock {

/// Starts a thread of the library. `ps -L` shows its `name`: at most 15 characters, beginning with
/// "penstock". Signals other than faults go to the program's own threads, whose calls they should interrupt.
/// Throws std::system_error if the system cannot start a thread.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace penstock
