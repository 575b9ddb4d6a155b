#include "transfer/engine_fixture.hpp"

namespace penstock::testing {

std::vector<DeviceCase> device_cases() {
  return {
      {"Host", [] { return Device::open("host"); }},
      {"HostLate", [] { return Device::open("host:late=1"); }},
      {"FakeCuda", [] { return Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER}); }},
      {"Cuda", [] { return Device::open("cuda:0"); }},
  };
}

}  // namespace penstock::testing
