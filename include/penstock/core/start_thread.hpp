#pragma once

#include <functional>
#include <thread>

namespace penstock {

/// Starts a thread of the library's own. `name` is what `ps -L` shows: at most 15 characters, of which the
/// first are "penstock". Signals other than faults go to the program's own threads, whose calls they are
/// meant to interrupt. Throws std::system_error if the system has no thread to give.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace penstock
