#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <string_view>

/// A malloc in place of the C library's, which it asks dlsym for at its first call: before all libraries are
/// initialised. Says at the end that it was called.

static std::atomic<void* (*)(std::size_t)> next{nullptr};

extern "C" void* malloc(std::size_t bytes) {
  if (next == nullptr) next = reinterpret_cast<void* (*)(std::size_t)>(dlsym(RTLD_NEXT, "malloc"));
  return next.load()(bytes);
}

__attribute__((destructor)) static void say() {
  constexpr std::string_view kText = "malloc was replaced\n";
  if (next != nullptr && ::write(STDERR_FILENO, kText.data(), kText.size()) < 0) ::_exit(1);
}
