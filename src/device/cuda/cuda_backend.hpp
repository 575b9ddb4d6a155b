#pragma once

#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/device.hpp>

#include <memory>

namespace penstock {

/// Opens GPU `index` by its primary context. Throws InvalidArgument for an index that is not there (naming
/// what is), and DeviceError where the driver is missing, too old, or fails.
[[nodiscard]] std::shared_ptr<Backend> open_cuda(int index, const DeviceOptions& options);

/// Appends the GPUs of this machine to `inventory.devices` without opening one, and a sentence to
/// `inventory.missing` for what is not there. Does not throw anything but bad_alloc.
void list_cuda(const DeviceOptions& options, DeviceInventory& inventory);

/// Whether `error`, thrown by open_cuda, only says that there is no driver or no GPU here: the failures after
/// which "auto" goes on with the host.
[[nodiscard]] bool means_no_gpu(const DeviceError& error) noexcept;

}  // namespace penstock
