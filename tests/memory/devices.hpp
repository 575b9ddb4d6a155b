#pragma once

#include "support/device_cases.hpp"
#include "support/gate.hpp"

#include <optional>

namespace penstock::testing {

/// Opens the device of the case. Skips the test if there is none.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = open_or_skip(GetParam());
    if (!device_) GTEST_SKIP() << "waived: no NVIDIA driver";
  }

  const Device& device() const { return *device_; }

 private:
  std::optional<Device> device_;
};

}  // namespace penstock::testing
