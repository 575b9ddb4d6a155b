#pragma once

#include <functional>
#include <string_view>

namespace penstock {

/// Receives one warning without a newline. Called from any thread, one call at a time. It must not wait for
/// anything that another thread could hold while it warns.
using LogSink = std::function<void(std::string_view)>;

/// Replaces the process's log sink. An empty function silences penstock; that is the default. The library
/// never prints: its warnings go here. Thread-safe; waits for a running call of the old sink.
void set_log_sink(LogSink sink);

/// Passes `message` to the sink. Ignores an exception from the sink. Thread-safe.
void log_warning(std::string_view message) noexcept;

}  // namespace penstock
