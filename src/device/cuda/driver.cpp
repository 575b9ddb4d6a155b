#include "device/cuda/driver.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::cuda {

namespace {

using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);

constexpr char kDefaultPath[] = "libcuda.so.1";

std::string_view advice(Result result) {
  switch (result) {
    case kNoDevice:
      return "The NVIDIA driver is there but shows no GPU: none is in this machine, this container was given "
             "none, or CUDA_VISIBLE_DEVICES hides them. Without a GPU, use the device \"host\".";
    case kNotInitialized:
      return "The driver is not usable here; after a fork, only the process that opened the device can use "
             "it.";
    case kJitCompilerNotFound:
      return "The driver's PTX compiler (libnvidia-ptxjitcompiler.so.1) is missing: install the whole "
             "driver; "
             "in a container, ask for the driver capabilities 'compute,utility'.";
    case kUnsupportedPtxVersion:
      return "The driver does not take penstock's kernels: update it.";
    case kSystemDriverMismatch:
      return "The driver's library and its kernel module differ in version: reboot, or in a container, mount "
             "the host's library.";
    case kEccUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kLaunchFailed:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
      return "Work that this program or another library enqueued earlier failed on the device; nothing can "
             "run on the device in this process any more.";
    default:
      return "";
  }
}

struct Library {
  void* handle = nullptr;
  std::string path;

  template <typename Function>
  [[nodiscard]] Function find(const char* symbol) const {
    return reinterpret_cast<Function>(dlsym(handle, symbol));
  }
};

Library open_library(const std::string& path) {
  dlerror();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw DeviceError(
        kNoDriver, "dlopen", 0,
        fmt::format("There is no NVIDIA driver that this process can load. If the machine has a "
                    "GPU, install the driver, or start the container with access to the GPUs. "
                    "Otherwise use the device \"host\". The system says: {}.",
                    reason != nullptr ? reason : path));
  }
  return {handle, path};
}

[[noreturn]] void refuse_old_driver(const Library& library, int version) {
  throw DeviceError(
      kDriverTooOld, "cuDriverGetVersion", version,
      fmt::format(
          "The driver {} supports CUDA {}, and penstock needs {} or newer (NVIDIA driver 525 or newer): "
          "update the driver.",
          library.path, version == 0 ? "of an unknown version" : format_version(version),
          format_version(kOldestDriver)));
}

int driver_version(const Library& library) {
  int version = 0;
  if (const auto get = library.find<Result (*)(int*)>("cuDriverGetVersion")) get(&version);
  return version;
}

void find_entry(const Library& library, GetProcAddress get, const char* name, int version, void** function) {
  int found = 0;
  const Result result = get(name, function, version, 0, &found);
  if (result == kStubLibrary) {
    throw DeviceError(
        "CUDA_ERROR_STUB_LIBRARY", "cuGetProcAddress", result,
        fmt::format("{} is the CUDA toolkit's stub for linking, not a driver: take its directory "
                    "off the library path.",
                    library.path));
  }
  if (result != kSuccess || *function == nullptr) {
    throw DeviceError(
        "CUDA_ERROR_NOT_FOUND", "cuGetProcAddress", result,
        fmt::format("The driver {} (CUDA {}) has no {} of version {}: update the driver.", library.path,
                    format_version(driver_version(library)), name, format_version(version)));
  }
}

void fill_table(const Library& library, Driver& driver) {
  const auto get = library.find<GetProcAddress>("cuGetProcAddress_v2");
  driver.version = driver_version(library);
  if (get == nullptr) refuse_old_driver(library, driver.version);
  find_entry(library, get, driver.init.name, 2000, reinterpret_cast<void**>(&driver.init.function));
  if (driver.version < kOldestDriver) refuse_old_driver(library, driver.version);
#define PENSTOCK_CUDA_FIND(member, symbol, version, parameters) \
  find_entry(library, get, #symbol, version, reinterpret_cast<void**>(&driver.member.function));
  PENSTOCK_CUDA_ENTRIES(PENSTOCK_CUDA_FIND)
#undef PENSTOCK_CUDA_FIND
#define PENSTOCK_CUDA_FIND(member, symbol, since, parameters) \
  if (driver.version >= since)                                \
    find_entry(library, get, #symbol, since, reinterpret_cast<void**>(&driver.member.function));
  PENSTOCK_CUDA_NEWER_ENTRIES(PENSTOCK_CUDA_FIND)
#undef PENSTOCK_CUDA_FIND
}

void initialise(Driver& driver) {
  const Result result = driver.init(0);
  driver.fork_generation = penstock::fork_generation();
  if (result == kSuccess) return;
  if (const std::string refusal = device_file_refusal("/dev"); !refusal.empty()) {
    throw DeviceError(kNoPermission, driver.init.name, result, refusal);
  }
  driver.fail(result, driver.init.name);
}

}  // namespace

std::string format_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string device_file_refusal(const std::string& directory) {
  for (const char* file : {"nvidiactl", "nvidia0", "nvidia-uvm"}) {
    const std::string path = directory + "/" + file;
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor >= 0) {
      ::close(descriptor);
    } else if (errno == EACCES || errno == EPERM) {
      return fmt::format(
          "{} may not be opened ({}): give this user read and write permission, or in a container, start it "
          "with access to the GPUs.",
          path, std::strerror(errno));
    }
  }
  return {};
}

std::string Driver::error_name(Result result) const {
  const char* text = nullptr;
  if (get_error_name(result, &text) == kSuccess && text != nullptr) return text;
  return "an unknown error";
}

void Driver::fail(Result result, const char* call, std::source_location where) const {
  const char* text = nullptr;
  std::string detail = get_error_string(result, &text) == kSuccess && text != nullptr ? text : "";
  if (!detail.empty()) detail = static_cast<char>(std::toupper(detail.front())) + detail.substr(1) + '.';
  if (const std::string_view more = advice(result); !more.empty())
    detail += fmt::format("{}{}", detail.empty() ? "" : " ", more);
  throw DeviceError(error_name(result), call, result, detail, where);
}

void throw_forked(const char* call, std::source_location where) {
  throw DeviceError(
      kForked, call, kNotInitialized,
      "This process was forked after the CUDA driver was in use, and CUDA does not survive a fork: "
      "open devices after the fork, or start workers with the 'spawn' method.",
      where);
}

const Driver& load_driver(const std::string& requested) {
  static auto& mutex = *new std::mutex;
  static auto& loaded = *new std::map<std::string, std::unique_ptr<Driver>>;
  const std::string path = requested.empty() ? kDefaultPath : requested;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Driver>& slot = loaded[path];
  if (slot == nullptr) {
    auto driver = std::make_unique<Driver>();
    driver->path = path;
    fill_table(open_library(path), *driver);
    initialise(*driver);
    slot = std::move(driver);
  }
  if (slot->fork_generation != fork_generation()) throw_forked("cuInit");
  return *slot;
}

}  // namespace penstock::cuda
