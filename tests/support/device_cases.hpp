#pragma once

#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::testing {

struct DeviceCase {
  std::string name;
  std::function<Device()> open;
};

inline std::ostream& operator<<(std::ostream& out, const DeviceCase& device) { return out << device.name; }

/// Without the cases that add nothing under a sanitizer, where each takes several times as long. Memory that
/// is used after its end shows on a device that is late, not on one that does all work at once. Threads
/// synchronize on both alike.
template <typename Case>
std::vector<Case> needed_here(std::vector<Case> cases) {
  constexpr std::string_view kSanitizers = PENSTOCK_SANITIZE;
  std::erase_if(cases, [&](const Case& each) {
    if (kSanitizers == "thread") return each.name.starts_with("HostLate");
    return !kSanitizers.empty() && each.name == "Host";
  });
  return cases;
}

/// A real GPU. One device of each stays open: making a context for each test takes most of the time.
inline Device open_gpu(const std::string& spec) {
  static auto& kept = *new std::map<std::string, Device>;
  if (!kept.contains(spec)) kept.emplace(spec, Device::open(spec));
  return Device::open(spec);
}

/// The embedded device plain and late, the cuda backend over the tests' driver, and a real GPU.
inline std::vector<DeviceCase> device_cases() {
  return needed_here(std::vector<DeviceCase>{
      {"Host", [] { return Device::open("host"); }},
      {"HostLate", [] { return Device::open("host:late=1"); }},
      {"FakeCuda", [] { return Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER}); }},
      {"Cuda", [] { return open_gpu("cuda:0"); }},
  });
}

/// "gpu:1" is a real GPU, and "cuda:1" one of the tests' driver. Other specs are host devices.
inline Device open_for_tests(const std::string& spec) {
  if (spec.starts_with("gpu:")) return open_gpu("cuda:" + spec.substr(4));
  return Device::open(spec, {.driver_library = spec.starts_with("cuda") ? PENSTOCK_FAKE_DRIVER : ""});
}

/// Why this machine lacks two GPUs that reach each other's memory; empty if it has them.
inline const std::string& missing_gpus() {
  static const std::string missing = []() -> std::string {
    const DeviceInventory inventory = Device::inventory();
    const auto gpus = std::ranges::count(inventory.devices, "cuda", &DeviceInfo::backend);
    if (gpus < 2) return "waived: fewer than two NVIDIA GPUs";
    if (open_for_tests("gpu:0").can_reach(open_for_tests("gpu:1"))) return {};
    return "waived: the GPUs do not reach each other's memory";
  }();
  return missing;
}

/// Nullopt if the case needs a GPU and there is none.
inline std::optional<Device> open_or_skip(const DeviceCase& device) {
  try {
    return device.open();
  } catch (const Error&) {
    if (device.name == "Cuda") return std::nullopt;
    throw;
  }
}

#define PENSTOCK_DEVICE_SUITE(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(, Suite, ::testing::ValuesIn(::penstock::testing::device_cases()), \
                           [](const auto& each) { return each.param.name; })

/// The embedded device again, with a link so slow that copies are still under way when a forgotten wait
/// shows.
#define PENSTOCK_SLOW_LINK_SUITE(Suite)                                                             \
  INSTANTIATE_TEST_SUITE_P(SlowLink, Suite,                                                         \
                           ::testing::Values(::penstock::testing::DeviceCase{                       \
                               "Host", [] { return ::penstock::Device::open("host:link=0.05"); }}), \
                           [](const auto& each) { return each.param.name; })

}  // namespace penstock::testing
