#include "warnings.hpp"

#include <penstock/core/log.hpp>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

namespace {

/// Warnings come from any thread, also from one that holds a lock for which the interpreter's holder waits.
/// They wait here until the main thread next runs Python.
struct Waiting {
  std::mutex mutex;
  std::vector<std::string> lines;
};

// Never destroyed: threads that outlive static destruction may still warn.
Waiting& waiting() {
  static auto* const instance = new Waiting;
  return *instance;
}

void log_what_waits() {
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(waiting().mutex);
    lines.swap(waiting().lines);
  }
  if (lines.empty()) return;
  const nb::object logger = nb::module_::import_("logging").attr("getLogger")("penstock");
  for (const std::string& line : lines) logger.attr("warning")("%s", nb::str(line.data(), line.size()));
}

int on_main_thread(void* /*payload*/) {
  try {
    log_what_waits();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("penstock's warnings");
  }
  return 0;
}

}  // namespace

void pass_warnings_on(nb::module_& module) {
  set_log_sink([](std::string_view line) {
    {
      const std::lock_guard lock(waiting().mutex);
      waiting().lines.emplace_back(line);
    }
    // If too many calls are pending, an earlier one has not run yet, or the next warning adds one.
    static_cast<void>(Py_AddPendingCall(on_main_thread, nullptr));
  });
  module.def("_stop_warnings", [] {
    set_log_sink({});
    log_what_waits();
  });
  nb::module_::import_("atexit").attr("register")(module.attr("_stop_warnings"));
}

}  // namespace penstock::python
