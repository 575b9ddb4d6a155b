#include "device/contract_peers.hpp"
#include "support/device_cases.hpp"

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
  return missing_gpus();
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, Contract,
                         ::testing::Values(ContractDevice{.name = "gpu",
                                                          .open = [] { return Device::open("cuda:0"); },
                                                          .waived = missing_driver}),
                         contract_name);

INSTANTIATE_TEST_SUITE_P(Cuda, PeerContract,
                         ::testing::Values(ContractPeers{
                             .name = "gpus",
                             .open = [](int index) { return Device::open("cuda:" + std::to_string(index)); },
                             .waived = missing_peers}),
                         peers_name);

}  // namespace penstock::testing
