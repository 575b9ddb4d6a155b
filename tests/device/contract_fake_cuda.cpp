#ifdef PENSTOCK_FAKE_DRIVER

#include "device/contract_suite.hpp"

namespace penstock::testing {

INSTANTIATE_TEST_SUITE_P(
    FakeCuda, Contract,
    ::testing::Values(ContractDevice{
        .name = "cuda",
        .open = [] { return Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER}); }}),
    contract_name);

}  // namespace penstock::testing

#endif
