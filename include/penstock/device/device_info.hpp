#pragma once

#include <penstock/device/device_tuning.hpp>
#include <penstock/device/topology.hpp>

#include <cstddef>
#include <string>

namespace penstock {

struct DeviceInfo {
  std::string spec;     ///< what Device::open takes to get this device again: "cuda:0", "host", "host:1"
  std::string backend;  ///< "cuda" or "host"
  int index = 0;        ///< the N of cuda:N or host:N
  std::string name;     ///< "NVIDIA H200"
  std::string uuid;     ///< stable across reboots; empty for host
  std::string driver;   ///< "13.0" (the CUDA version the driver supports), or penstock's version for host
  std::string pci_bus_id;
  int compute_major = 0;
  int compute_minor = 0;
  unsigned multiprocessors = 0;
  std::size_t memory_bytes = 0;
  int numa_node = -1;  ///< -1: unknown or none
  /// The copy engines take many copies in one call, at 0.65 to 0.9 µs each (cuda from driver 12.8).
  /// If false, copy_each costs a call for each copy.
  bool batched_copies = false;
  /// Device memory is host memory. The host reads and writes it in place, without a link between.
  bool in_host_memory = false;
  LinkInfo link;
  DeviceTuning tuning;
};

struct DeviceMemory {
  std::size_t total = 0;  ///< bytes
  std::size_t free = 0;   ///< bytes; other processes share it
};

}  // namespace penstock
