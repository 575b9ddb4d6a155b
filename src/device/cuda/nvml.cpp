#include "device/cuda/nvml.hpp"

#include <dlfcn.h>

namespace penstock::cuda {

namespace {

struct DeviceTag;
using NvmlDevice = DeviceTag*;
using Read = int (*)(NvmlDevice, unsigned*);

class NvmlLibrary {
 public:
  explicit NvmlLibrary(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    const auto init = find<int (*)()>("nvmlInit_v2");
    is_ready_ = init != nullptr && init() == 0;
  }

  [[nodiscard]] bool is_ready() const noexcept { return is_ready_; }

  template <typename Function>
  [[nodiscard]] Function find(const char* symbol) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

  [[nodiscard]] unsigned read(const char* symbol, NvmlDevice device) const {
    unsigned value = 0;
    const auto function = find<Read>(symbol);
    return function != nullptr && function(device, &value) == 0 ? value : 0;
  }

 private:
  void* handle_;
  bool is_ready_ = false;
};

/// Never shut down: some drivers' NVML leaves a descriptor open for each time that it starts.
const NvmlLibrary& nvml() {
  static const NvmlLibrary library("libnvidia-ml.so.1");
  return library;
}

}  // namespace

LinkInfo link_from_nvml(const std::string& pci_bus_id) {
  const NvmlLibrary& library = nvml();
  const auto get = library.find<int (*)(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2");
  if (!library.is_ready() || get == nullptr) return {};
  LinkInfo link;
  NvmlDevice device = nullptr;
  if (get(pci_bus_id.c_str(), &device) == 0) {
    link.generation = library.read("nvmlDeviceGetCurrPcieLinkGeneration", device);
    link.width = library.read("nvmlDeviceGetCurrPcieLinkWidth", device);
    link.max_generation = library.read("nvmlDeviceGetMaxPcieLinkGeneration", device);
    link.max_width = library.read("nvmlDeviceGetMaxPcieLinkWidth", device);
  }
  return link;
}

}  // namespace penstock::cuda
