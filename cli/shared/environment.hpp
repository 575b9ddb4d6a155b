#pragma once

#include <penstock/device/device.hpp>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

namespace penstock::cli {

/// The settings that the command takes from its environment. Nothing else reads the environment.
struct Environment {
  DeviceOptions device;                                  ///< PENSTOCK_LIBCUDA
  std::optional<std::filesystem::path> cache_directory;  ///< XDG_CACHE_HOME, or HOME and .cache
  std::string python;  ///< a program that has the package, or is looked for in the PATH
};

/// The options ask for something impossible: exit status 2, as for options that cannot be read.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace penstock::cli
