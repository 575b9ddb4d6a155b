#pragma once

#include <penstock/device/device_info.hpp>

#include <string>

namespace penstock {

/// The name that tells a device's link from others: its uuid, or its spec if it has no uuid.
[[nodiscard]] inline std::string link_identity(const DeviceInfo& device) {
  return device.uuid.empty() ? device.spec : device.uuid;
}

}  // namespace penstock
