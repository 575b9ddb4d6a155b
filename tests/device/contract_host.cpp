#include "device/contract_peers.hpp"

namespace penstock::testing {

namespace {

ContractDevice host(const std::string& name, const std::string& options) {
  return {.name = name, .open = [options] { return Device::open("host:memory=256MiB" + options); }};
}

ContractPeers host_peers(const std::string& name, const std::string& options) {
  return {.name = name, .open = [options](int index) {
            return Device::open("host:" + std::to_string(index) + ",memory=64MiB" + options);
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Host, Contract,
                         ::testing::Values(host("plain", ""), host("late", ",late=1"),
                                           host("link", ",link=20,latency=5")),
                         contract_name);

INSTANTIATE_TEST_SUITE_P(Host, PeerContract,
                         ::testing::Values(host_peers("plain", ""), host_peers("late", ",late=1"),
                                           host_peers("link", ",link=0.2,peer=0.5,latency=5"),
                                           host_peers("lateLink", ",link=0.2,peer=0.5,late=1")),
                         peers_name);

}  // namespace penstock::testing
