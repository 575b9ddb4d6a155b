#include "device/cuda/nvjpeg.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace penstock::cuda::nvjpeg {

std::vector<std::string> candidates(std::vector<std::string> first) {
  for (const char* folder :
       {"", "/usr/local/cuda/lib64/", "/usr/local/cuda-13/lib64/", "/usr/local/cuda-12/lib64/"}) {
    for (const char* version : {"13", "12", "11"}) {
      first.push_back(fmt::format("{}libnvjpeg.so.{}", folder, version));
    }
  }
  return first;
}

std::optional<Library> open(const std::string& path, std::string& why) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    why = reason != nullptr ? reason : path;
    return std::nullopt;
  }
  Library library;
  library.path = path;
#define PENSTOCK_NVJPEG_FIND(member, symbol, parameters)                           \
  library.member = reinterpret_cast<Status(*) parameters>(dlsym(handle, #symbol)); \
  if (library.member == nullptr) {                                                 \
    why = path + " has no " #symbol;                                               \
    return std::nullopt;                                                           \
  }
  PENSTOCK_NVJPEG_ENTRIES(PENSTOCK_NVJPEG_FIND)
#undef PENSTOCK_NVJPEG_FIND
  return library;
}

std::string Library::version() const {
  int major = 0;
  int minor = 0;
  if (get_property(kMajorVersion, &major) != kSuccess || get_property(kMinorVersion, &minor) != kSuccess)
    return "of an unknown version";
  return fmt::format("{}.{}", major, minor);
}

std::string status_name(Status status) {
  constexpr std::array kStatuses{"SUCCESS",
                                 "NOT_INITIALIZED",
                                 "INVALID_PARAMETER",
                                 "BAD_JPEG",
                                 "JPEG_NOT_SUPPORTED",
                                 "ALLOCATOR_FAILURE",
                                 "EXECUTION_FAILED",
                                 "ARCH_MISMATCH",
                                 "INTERNAL_ERROR",
                                 "IMPLEMENTATION_NOT_SUPPORTED",
                                 "INCOMPLETE_BITSTREAM"};
  const auto index = static_cast<std::size_t>(status);
  return index < kStatuses.size() ? fmt::format("NVJPEG_STATUS_{}", kStatuses[index])
                                  : fmt::format("status {} of nvJPEG", status);
}

}  // namespace penstock::cuda::nvjpeg
