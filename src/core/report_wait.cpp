#include "core/shared/report_wait.hpp"

#include "core/shared/start_thread.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace penstock {

namespace {

using Report = void (*)(std::uint64_t nanoseconds);

/// The command sets it before the program begins.
const bool is_recorded = std::getenv("PENSTOCK_RECORD") != nullptr;

/// The recorder's function; null until the driver has loaded it, which a first device of its own makes it do.
Report find_recorder() noexcept {
  const char* const file = std::getenv("CUDA_INJECTION64_PATH");
  void* const library = file == nullptr ? nullptr : ::dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Report>(::dlsym(library, "penstock_recorder_waited"));
}

}  // namespace

void report_wait(std::chrono::nanoseconds waited) noexcept {
  static std::atomic<Report> known{nullptr};
  if (!is_recorded || is_own_thread()) return;
  Report report = known.load(std::memory_order_relaxed);
  if (report == nullptr) known.store(report = find_recorder(), std::memory_order_relaxed);
  if (report != nullptr) report(static_cast<std::uint64_t>(waited.count()));
}

}  // namespace penstock
