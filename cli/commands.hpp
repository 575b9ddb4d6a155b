#pragma once

#include "terminal.hpp"

#include <penstock/device/device.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace penstock::cli {

/// What the command takes from its environment. Nothing else reads it.
struct Environment {
  DeviceOptions device;                                  ///< PENSTOCK_LIBCUDA
  std::optional<std::filesystem::path> cache_directory;  ///< XDG_CACHE_HOME, or HOME and .cache
  bool utf8 = false;
};

struct InfoOptions {
  std::string device;  ///< empty: all
  bool json = false;
};
int run_info(const InfoOptions& options, const Environment& environment);

struct LinkOptions {
  std::string device = "auto";
  bool quick = false;
  std::size_t max_bytes = std::size_t{1} << 30;
  std::size_t repetitions = 0;
  std::string json;  ///< file, "-" for standard output, empty for none
  bool store = true;
  std::string profile;  ///< file in place of the one in the cache
  bool ascii = false;
};
int run_link(const LinkOptions& options, const Environment& environment);

struct PredictOptions {
  std::string device = "auto";
  std::size_t bytes = 0;
  std::size_t pieces = 1;
  std::string from = "pageable";
  std::string to = "device";
  std::string path = "automatic";
  std::string profile;
  bool json = false;
};
int run_predict(const PredictOptions& options, const Environment& environment);

/// The user asked to stop.
struct Interrupted {};

/// Where the profile of `device` is: `file` if given, else in the cache. Throws Error where there is no
/// cache.
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const DeviceInfo& device,
                                                 const Environment& environment);
/// The profile there, or nullopt. One that is there and cannot be used is reported on stderr.
[[nodiscard]] std::optional<LinkProfile> stored_profile(const std::filesystem::path& file,
                                                        const DeviceInfo& device);

/// "55.6": bytes per second in GB/s, with three digits that count.
[[nodiscard]] std::string format_rate(double bytes_per_second);
/// "PCIe 5 x16", or "not stated".
[[nodiscard]] std::string format_link(const LinkInfo& link);

}  // namespace penstock::cli
