#include "device/contract_peers.hpp"

#include <algorithm>

namespace penstock::testing {

namespace {

std::string missing_driver() {
  try {
    static_cast<void>(Device::open("cuda:0"));
    return {};
  } catch (const DeviceError& error) {
    // If the driver is there and fails, these tests fail; they are not skipped.
    return Device::open("auto").info().backend == "host" ? "waived: no NVIDIA driver" : std::string();
  }
}

std::string missing_peers() {
  if (const std::string reason = missing_driver(); !reason.empty()) return reason;
  const DeviceInventory inventory = Device::inventory();
  const auto gpus = std::count_if(inventory.devices.begin(), inventory.devices.end(),
                                  [](const DeviceInfo& info) { return info.backend == "cuda"; });
  if (gpus < 2) return "waived: one GPU only";
  const bool reached = Device::open("cuda:0").can_reach(Device::open("cuda:1"));
  return reached ? std::string() : "waived: the GPUs do not reach each other's memory";
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, Contract,
                         ::testing::Values(ContractDevice{.name = "gpu",
                                                          .open = [] { return Device::open("cuda:0"); },
                                                          .waived = missing_driver}),
                         contract_name);

// Not among the tests that must run on every GPU: most machines have one.
INSTANTIATE_TEST_SUITE_P(TwoCuda, PeerContract,
                         ::testing::Values(ContractPeers{
                             .name = "gpus",
                             .open = [](int index) { return Device::open("cuda:" + std::to_string(index)); },
                             .waived = missing_peers}),
                         peers_name);

}  // namespace penstock::testing
