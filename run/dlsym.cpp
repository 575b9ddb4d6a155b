#include "run/interpose.hpp"

#include <dlfcn.h>

#include <atomic>

namespace penstock::run {

namespace {

using Dlsym = void* (*)(void*, const char*) noexcept;

/// Where this library begins and ends in memory, by the linker.
extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

// An interposed dlsym cannot be asked for the real one, but its sister can. No guard and no allocation: a
// malloc that the program has brought may be asking.
Dlsym find_dlsym() noexcept {
  static std::atomic<Dlsym> found{nullptr};
  Dlsym real = found.load(std::memory_order_relaxed);
  for (const char* const version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
    if (real != nullptr) break;
    real = reinterpret_cast<Dlsym>(::dlvsym(RTLD_NEXT, "dlsym", version));
  }
  found.store(real, std::memory_order_relaxed);
  return real;
}

}  // namespace

bool is_own_code(const void* address) noexcept { return address >= &__ehdr_start && address < &_end; }

void* real_dlsym(void* library, const char* symbol) noexcept { return find_dlsym()(library, symbol); }

}  // namespace penstock::run

/// The last call is compiled as a jump: for RTLD_NEXT, the C library goes by where the call returns to.
extern "C" __attribute__((visibility("default"))) void* dlsym(void* library, const char* symbol) noexcept {
  using namespace penstock::run;
  if (symbol[0] == 'c' && symbol[1] == 'u' && !is_own_code(__builtin_return_address(0))) {
    if (void* const function = stand_in(symbol, real_dlsym(library, symbol))) return function;
  }
  return find_dlsym()(library, symbol);
}
