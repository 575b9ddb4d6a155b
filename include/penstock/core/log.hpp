#pragma once

#include <functional>
#include <string_view>

namespace penstock {

/// Receives one warning without a newline. May be called from any thread, one call at a time; it must not
/// wait for anything that another thread could hold while it warns.
using LogSink = std::function<void(std::string_view)>;

/// Replaces the process's log sink; an empty function silences penstock, which is also the start.
/// Thread-safe; a call of the old sink that is under way ends first. The library never prints: what it has to
/// say without failing goes here.
void set_log_sink(LogSink sink);

/// Passes `message` to the sink. Thread-safe; an exception from the sink is swallowed.
void log_warning(std::string_view message) noexcept;

}  // namespace penstock
