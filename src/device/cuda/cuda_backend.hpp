#pragma once

#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/device.hpp>

#include <memory>

namespace penstock {

/// Opens GPU `index` through its primary context. If there is no such GPU, throws InvalidArgument that names
/// the GPUs. Throws DeviceError if the driver is missing, too old, or fails.
[[nodiscard]] std::shared_ptr<Backend> open_cuda(int index, const DeviceOptions& options);

/// Appends the GPUs of this machine to `inventory.devices` without opening one. If GPUs or the driver are
/// missing, appends a sentence to `inventory.missing`. Throws nothing but bad_alloc.
void list_cuda(const DeviceOptions& options, DeviceInventory& inventory);

/// True if `error` of open_cuda only says that the driver or a GPU is missing. "auto" then takes the host.
[[nodiscard]] bool means_no_gpu(const DeviceError& error) noexcept;

}  // namespace penstock
