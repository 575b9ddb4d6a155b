#pragma once

#include <penstock/device/backend.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

namespace penstock {

/// Options of the embedded device; Device::open explains the keys.
struct HostOptions {
  int index = 0;                          ///< the N of host:N
  double link_bytes_per_second = 0;       ///< of a modelled link, each way; 0: as fast as memory
  double peer_bytes_per_second = 0;       ///< of the modelled link to other devices, the same
  std::chrono::nanoseconds latency{0};    ///< of a modelled copy
  std::size_t memory_bytes = 0;           ///< of the device; 0: half of the host's memory
  std::optional<std::size_t> lock_bytes;  ///< host memory that may be registered; none: no limit
  bool late = false;                      ///< poison destinations at once; do the work when somebody waits
};

/// Reads "1,link=12,latency=8,peer=100,memory=4GiB,lock=8MiB,late=1": any subset. The number comes first, the
/// rest in any order. An empty text gives the defaults. Throws InvalidArgument that names the part it cannot
/// read.
[[nodiscard]] HostOptions parse_host_options(std::string_view text);

/// Opens the embedded device. Throws InvalidArgument for options without meaning.
[[nodiscard]] std::shared_ptr<Backend> open_host(const HostOptions& options = {});

/// The info of open_host's device, without opening it.
[[nodiscard]] DeviceInfo host_device_info(const HostOptions& options = {});

}  // namespace penstock
