#pragma once

#include "fake_driver/fake_cuda_controls.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/device.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace penstock::testing {

/// Tests of the cuda backend over the fake driver, which is reset before and after each.
class CudaTest : public ::testing::Test {
 protected:
  ~CudaTest() override { fake.reset(); }

  [[nodiscard]] static Device open(const std::string& spec = "cuda:0") {
    return Device::open(spec, {.driver_library = PENSTOCK_FAKE_DRIVER});
  }

  [[nodiscard]] static std::string library(const char* name) {
    return std::filesystem::path(PENSTOCK_FAKE_DRIVER).replace_filename(name);
  }

  FakeCuda fake{PENSTOCK_FAKE_DRIVER};
};

/// Another path to the fake driver. A loaded driver is kept by its path until the process ends. A test of a
/// driver that fails to load therefore needs a path of its own.
class DriverLink {
 public:
  DriverLink() {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("penstock-driver-" + std::to_string(::getpid()) + "-" + std::to_string(++number) + ".so");
    std::filesystem::create_symlink(PENSTOCK_FAKE_DRIVER, path_);
  }
  ~DriverLink() { std::filesystem::remove(path_); }
  DriverLink(const DriverLink&) = delete;
  DriverLink& operator=(const DriverLink&) = delete;

  [[nodiscard]] DeviceOptions options() const { return {.driver_library = path_.string()}; }

 private:
  std::filesystem::path path_;
};

/// Runs `function`, which must throw a DeviceError, and returns that.
template <typename Function>
DeviceError device_error(Function&& function) {
  try {
    function();
  } catch (const DeviceError& error) {
    return error;
  }
  ADD_FAILURE() << "no DeviceError";
  return DeviceError("none", "none", 0, "");
}

}  // namespace penstock::testing
