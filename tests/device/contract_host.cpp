#include "device/contract_suite.hpp"

namespace penstock::testing {

namespace {

ContractDevice host(const std::string& name, const std::string& options) {
  return {.name = name, .open = [options] { return Device::open("host:memory=256MiB" + options); }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Host, Contract,
                         ::testing::Values(host("plain", ""), host("late", ",late=1"),
                                           host("link", ",link=20,latency=5")),
                         contract_name);

}  // namespace penstock::testing
