#include "device/cuda/device_info.hpp"

#include "device/cuda/nvml.hpp"

#include <penstock/device/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace penstock::cuda {

namespace {

std::string format_uuid(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

LinkInfo read_link(const std::string& pci_bus_id) {
  const LinkInfo link = link_of_pci(pci_bus_id);
  return link.max_generation != 0 && link.max_width != 0 ? link : link_from_nvml(pci_bus_id);
}

}  // namespace

int count_devices(const Driver& driver) {
  int count = 0;
  driver.check(driver.device_get_count(&count), driver.device_get_count.name);
  return count;
}

Ordinal find_device(const Driver& driver, int index) {
  Ordinal device = 0;
  driver.check(driver.device_get(&device, index), driver.device_get.name);
  return device;
}

int read_attribute(const Driver& driver, Ordinal device, DeviceAttribute attribute) {
  int value = 0;
  driver.check(driver.device_get_attribute(&value, attribute, device), driver.device_get_attribute.name);
  return value;
}

DeviceInfo read_device_info(const Driver& driver, int index) {
  const Ordinal device = find_device(driver, index);
  DeviceInfo info;
  info.spec = fmt::format("cuda:{}", index);
  info.backend = "cuda";
  info.index = index;
  std::array<char, 256> text{};
  driver.check(driver.device_get_name(text.data(), text.size() - 1, device), driver.device_get_name.name);
  info.name = text.data();
  Uuid uuid{};
  driver.check(driver.device_get_uuid(&uuid, device), driver.device_get_uuid.name);
  info.uuid = format_uuid(uuid);
  info.driver = format_version(driver.version);
  text = {};
  driver.check(driver.device_get_pci_bus_id(text.data(), text.size() - 1, device),
               driver.device_get_pci_bus_id.name);
  info.pci_bus_id = lower_case(text.data());
  info.compute_major = read_attribute(driver, device, DeviceAttribute::compute_major);
  info.compute_minor = read_attribute(driver, device, DeviceAttribute::compute_minor);
  info.multiprocessors =
      static_cast<unsigned>(read_attribute(driver, device, DeviceAttribute::multiprocessors));
  driver.check(driver.device_total_mem(&info.memory_bytes, device), driver.device_total_mem.name);
  info.numa_node = numa_node_of_pci(info.pci_bus_id);
  info.batched_copies = static_cast<bool>(driver.memcpy_batch_async);
  info.link = read_link(info.pci_bus_id);
  return info;
}

}  // namespace penstock::cuda
