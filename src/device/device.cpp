#include "device/cuda/cuda_backend.hpp"
#include "device/host/host_backend.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>

#include <fmt/format.h>

#include <charconv>
#include <exception>
#include <utility>

namespace penstock {

namespace {

[[noreturn]] void refuse_spec(std::string_view spec) {
  throw InvalidArgument(
      fmt::format("unknown device '{}'; write auto, cuda, cuda:N, host, or host:key=value,...", spec));
}

int parse_index(std::string_view spec, std::string_view digits) {
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc{} || end != digits.data() + digits.size() || index < 0) refuse_spec(spec);
  return index;
}

std::shared_ptr<Backend> open_auto(const DeviceOptions& options) {
  try {
    return open_cuda(0, options);
  } catch (const DeviceError& error) {
    if (!means_no_gpu(error)) throw;
  }
  return open_host();
}

std::shared_ptr<Backend> open_backend(std::string_view spec, const DeviceOptions& options) {
  if (spec == "auto") return open_auto(options);
  if (spec == "host") return open_host();
  if (spec.starts_with("host:")) return open_host(parse_host_options(spec.substr(5)));
  if (spec == "cuda") return open_cuda(0, options);
  if (spec.starts_with("cuda:")) return open_cuda(parse_index(spec, spec.substr(5)), options);
  refuse_spec(spec);
}

}  // namespace

Device Device::open(std::string_view spec, const DeviceOptions& options) {
  return Device(open_backend(spec, options));
}

DeviceInventory Device::inventory(const DeviceOptions& options) {
  DeviceInventory inventory;
  try {
    list_cuda(options, inventory);
  } catch (const std::exception& error) {
    inventory.missing.push_back(fmt::format("GPUs could not be looked for: {}", error.what()));
  }
  inventory.devices.push_back(host_device_info());
  return inventory;
}

Device::Device(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
  if (backend_ == nullptr) throw InvalidArgument("a device needs a backend; this one is null");
}

Stream Device::create_stream(StreamPriority priority) const { return Stream(backend_, priority); }

Stream Device::wrap_stream(StreamHandle native) const { return Stream(backend_, native); }

Event Device::create_event(EventTiming timing, EventWait wait) const { return Event(backend_, timing, wait); }

}  // namespace penstock
