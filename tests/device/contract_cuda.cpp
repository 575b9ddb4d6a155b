#include "device/contract_suite.hpp"

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

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, Contract,
                         ::testing::Values(ContractDevice{.name = "gpu",
                                                          .open = [] { return Device::open("cuda:0"); },
                                                          .waived = missing_driver}),
                         contract_name);

}  // namespace penstock::testing
