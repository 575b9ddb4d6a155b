#pragma once

#include <penstock/device/device_info.hpp>

#include <string>

namespace penstock {

/// What tells a device's link from others': its uuid, and its spec where it has none.
[[nodiscard]] inline std::string link_identity(const DeviceInfo& device) {
  return device.uuid.empty() ? device.spec : device.uuid;
}

}  // namespace penstock
