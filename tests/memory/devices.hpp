#pragma once

#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace penstock::testing {

/// A device to run a suite on.
struct DeviceCase {
  const char* name;
  const char* spec;
  bool fake_driver;
};

inline constexpr DeviceCase kDeviceCases[] = {
    {"host", "host", false},
    {"host_late", "host:late=1", false},
    {"cuda_fake", "cuda:0", true},
    {"cuda", "cuda:0", false},
};

inline std::string case_name(const ::testing::TestParamInfo<DeviceCase>& info) { return info.param.name; }

inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.name; }

/// Opens the device of the case, and skips where there is none.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    try {
      DeviceOptions options;
      if (GetParam().fake_driver) options.driver_library = PENSTOCK_FAKE_DRIVER;
      device_.emplace(Device::open(GetParam().spec, options));
    } catch (const DeviceError& error) {
      if (std::string(GetParam().name) != "cuda") throw;
      GTEST_SKIP() << "waived: no NVIDIA driver (" << error.what() << ")";
    }
  }

  const Device& device() const { return *device_; }

 private:
  std::optional<Device> device_;
};

/// Holds a stream's later work back until opened; destroying it opens it and waits for the stream.
class Gate {
 public:
  Gate(const Device& device, const Stream& stream) : device_(device), stream_(stream) {
    word_ = static_cast<std::uint32_t*>(device_.backend().host_allocate(sizeof(std::uint32_t)));
    std::atomic_ref(*word_).store(0);
    device_.backend().stream_wait_value(stream_.native(), word_, 1);
  }
  ~Gate() {
    open();
    stream_.synchronize();
    device_.backend().host_free(word_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { std::atomic_ref(*word_).store(1, std::memory_order_release); }

 private:
  Device device_;
  const Stream& stream_;
  std::uint32_t* word_;
};

}  // namespace penstock::testing
