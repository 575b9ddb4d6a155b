#pragma once

#include <functional>
#include <string_view>

namespace penstock {

enum class LogLevel { debug, info, warning };

/// Receives one line without its newline. May be called from any thread, one call at a time.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the process's log sink; an empty function silences penstock, which is also the start.
/// Thread-safe. The library never prints: what it has to say without failing goes here.
void set_log_sink(LogSink sink);

/// Passes `message` to the sink. Thread-safe; an exception from the sink is swallowed.
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace penstock
