#ifdef PENSTOCK_FAKE_DRIVER

#include "device/contract_peers.hpp"

namespace penstock::testing {

INSTANTIATE_TEST_SUITE_P(
    FakeCuda, Contract,
    ::testing::Values(ContractDevice{
        .name = "cuda",
        .open = [] { return Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER}); }}),
    contract_name);

INSTANTIATE_TEST_SUITE_P(FakeCuda, PeerContract,
                         ::testing::Values(ContractPeers{.name = "cuda",
                                                         .open =
                                                             [](int index) {
                                                               return Device::open(
                                                                   "cuda:" + std::to_string(index),
                                                                   {.driver_library = PENSTOCK_FAKE_DRIVER});
                                                             }}),
                         peers_name);

}  // namespace penstock::testing

#endif
