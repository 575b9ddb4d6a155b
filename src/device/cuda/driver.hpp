#pragma once

#include "device/cuda/driver_types.hpp"

#include <cstdint>
#include <source_location>
#include <string>

namespace penstock::cuda {

template <typename Signature>
struct Entry;

/// One function of the driver, with the driver's name for it.
template <typename... Arguments>
struct Entry<void(Arguments...)> {
  const char* name = nullptr;
  Result (*function)(Arguments...) = nullptr;
  [[nodiscard]] explicit operator bool() const noexcept { return function != nullptr; }
  Result operator()(Arguments... arguments) const { return function(arguments...); }
};

/// The functions of one driver library. Loaded once for each path and never unloaded, since threads of the
/// driver run its code until the process ends.
struct Driver {
#define PENSTOCK_CUDA_MEMBER(member, symbol, version, parameters) Entry<void parameters> member{#symbol};
  PENSTOCK_CUDA_ENTRIES(PENSTOCK_CUDA_MEMBER)
  PENSTOCK_CUDA_NEWER_ENTRIES(PENSTOCK_CUDA_MEMBER)
#undef PENSTOCK_CUDA_MEMBER

  std::string path;
  int version = 0;                    ///< 13000 for CUDA 13.0
  std::uint64_t fork_generation = 0;  ///< in which cuInit was called

  /// Throws the error that `result` of `call` stands for, unless it is success.
  void check(Result result, const char* call,
             std::source_location where = std::source_location::current()) const {
    if (result != kSuccess) [[unlikely]]
      fail(result, call, where);
  }
  [[noreturn]] void fail(Result result, const char* call,
                         std::source_location where = std::source_location::current()) const;
  [[nodiscard]] std::string error_name(Result result) const;
};

/// The oldest driver that is accepted: from it on, cuGetProcAddress takes exact versions.
inline constexpr int kOldestDriver = 12000;

inline constexpr char kNoDriver[] = "PENSTOCK_NO_DRIVER";
inline constexpr char kDriverTooOld[] = "PENSTOCK_DRIVER_TOO_OLD";
inline constexpr char kNoPermission[] = "PENSTOCK_NO_PERMISSION";
inline constexpr char kForked[] = "PENSTOCK_FORKED";

/// Loads and initialises the driver at `path` (empty: libcuda.so.1), or returns the one already loaded.
/// Thread-safe. Throws DeviceError if the driver is missing, too old, a stub, forbidden, or fails.
[[nodiscard]] const Driver& load_driver(const std::string& path);

[[noreturn]] void throw_forked(const char* call,
                               std::source_location where = std::source_location::current());

/// A sentence that says why this user may not open the driver's device files below `directory` ("/dev").
/// Empty if permissions are not the cause.
[[nodiscard]] std::string device_file_refusal(const std::string& directory);

/// "12.4" for 12040.
[[nodiscard]] std::string format_version(int version);

}  // namespace penstock::cuda
