#pragma once

#include "device/cuda/driver.hpp"

#include <penstock/device/device_info.hpp>

namespace penstock::cuda {

/// The number of GPUs that the driver shows. Throws DeviceError.
[[nodiscard]] int count_devices(const Driver& driver);

/// What the driver and the system say about GPU `index`, which exists. Throws DeviceError.
[[nodiscard]] DeviceInfo read_device_info(const Driver& driver, int index);

[[nodiscard]] Ordinal find_device(const Driver& driver, int index);
[[nodiscard]] int read_attribute(const Driver& driver, Ordinal device, DeviceAttribute attribute);

}  // namespace penstock::cuda
