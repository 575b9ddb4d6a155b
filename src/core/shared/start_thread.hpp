#pragma once

#include <functional>
#include <thread>

namespace penstock {

/// Starts a thread of the library. `ps -L` shows its `name`: at most 15 characters, beginning with
/// "penstock". Signals other than faults go to the program's own threads, whose calls they should interrupt.
/// Its sleeps end when they should: by default, Linux lets a thread sleep up to 50 µs longer (timer slack,
/// prctl(2)). Throws Unsupported if the system cannot start a thread.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> body);

/// True on such a thread.
[[nodiscard]] bool is_own_thread() noexcept;

}  // namespace penstock
