#pragma once

#include "fake_cuda.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace penstock::testing {

/// The controls of the fake driver at `path`, as members: `fake.fail("cuMemAlloc", 1, 2)`. Resets it.
class FakeCuda {
 public:
  explicit FakeCuda(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
#define FAKE_CUDA_FIND(result, name, parameters) \
  name = reinterpret_cast<decltype(name)>(dlsym(handle_, "fake_cuda_" #name));
    FAKE_CUDA_CONTROLS(FAKE_CUDA_FIND)
#undef FAKE_CUDA_FIND
    reset();
  }

  /// An entry of the driver itself, for a test that plays another user of it.
  template <typename Function>
  [[nodiscard]] Function entry(const char* driver_name) const {
    using Get = int (*)(const char*, void**, int, unsigned long long, int*);
    void* function = nullptr;
    const auto get = reinterpret_cast<Get>(dlsym(handle_, "cuGetProcAddress_v2"));
    if (get(driver_name, &function, 13000, 0, nullptr) != 0) throw std::runtime_error(driver_name);
    return reinterpret_cast<Function>(function);
  }

#define FAKE_CUDA_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  FAKE_CUDA_CONTROLS(FAKE_CUDA_MEMBER)
#undef FAKE_CUDA_MEMBER

 private:
  void* handle_;
};

}  // namespace penstock::testing
