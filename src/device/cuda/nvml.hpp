#pragma once

#include <penstock/device/topology.hpp>

#include <string>

namespace penstock::cuda {

/// Generation and width of the link of the GPU at `pci_bus_id`, from the driver's management library. Zeros
/// if the library is missing or does not say.
[[nodiscard]] LinkInfo link_from_nvml(const std::string& pci_bus_id);

}  // namespace penstock::cuda
