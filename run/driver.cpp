#include "run/driver.hpp"

#include "run/interpose.hpp"

#include <dlfcn.h>

namespace penstock::run {

Driver::Driver(const std::string& path) {
  using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto get = reinterpret_cast<GetProcAddress>(real_dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return;
  complete = true;
#define PENSTOCK_RUN_FIND(member, name, version, parameters) \
  complete &=                                                \
      get(#name, reinterpret_cast<void**>(&member), version, 0, nullptr) == kSuccess && member != nullptr;
  PENSTOCK_RUN_DRIVER(PENSTOCK_RUN_FIND)
#undef PENSTOCK_RUN_FIND
}

}  // namespace penstock::run
