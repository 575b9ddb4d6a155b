#include "devices.hpp"

#include "numa_nodes.hpp"

#include <dlfcn.h>

namespace penstock::recorder {

namespace {

constexpr const char* kSysfs = "/sys";

}  // namespace

void Devices::note(RecordingFile& file) noexcept {
  const std::uint64_t fresh = seen_.load() & ~noted_;
  if (fresh == 0) return;
  noted_ |= fresh;
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return;
  using Describe = int (*)(char* text, int bytes, int device);
  const auto name_of = reinterpret_cast<Describe>(::dlsym(driver, "cuDeviceGetName"));
  const auto bus_id_of = reinterpret_cast<Describe>(::dlsym(driver, "cuDeviceGetPCIBusId"));
  for (std::uint32_t device = 0; device < 64; ++device) {
    if ((fresh >> device & 1) == 0) continue;
    char text[128];
    const auto ask = [&](Describe of) {
      return of != nullptr && of(text, sizeof text, static_cast<int>(device)) == 0;
    };
    if (ask(name_of)) file.add_text(recording::TextType::device, &device, sizeof device, text);
    const std::uint8_t node = ask(bus_id_of) ? node_of_pci(kSysfs, text) : std::uint8_t{0};
    const std::uint32_t numbers[] = {device, node - 1U};
    if (node != 0) file.add_text(recording::TextType::device_node, numbers, sizeof numbers, {});
  }
}

void note_only_node(RecordingFile& file) noexcept {
  const std::uint8_t node = only_node(kSysfs);
  const std::uint32_t number = node - 1U;
  if (node != 0) file.add_text(recording::TextType::only_node, &number, sizeof number, {});
}

}  // namespace penstock::recorder
