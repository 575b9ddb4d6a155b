#include <penstock/core/log.hpp>

#include <mutex>

namespace penstock {

namespace {

struct SinkSlot {
  std::mutex mutex;
  LogSink sink;
};

// Never destroyed: threads that outlive static destruction may still log.
SinkSlot& slot() {
  static auto* const instance = new SinkSlot;
  return *instance;
}

}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(slot().mutex);
  slot().sink = std::move(sink);
}

void log_warning(std::string_view message) noexcept {
  try {
    const std::lock_guard lock(slot().mutex);
    if (slot().sink) slot().sink(message);
  } catch (...) {  // a sink that fails must not fail the work it reports on
  }
}

}  // namespace penstock
