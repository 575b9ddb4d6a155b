#include "devices.hpp"

#include <dlfcn.h>

namespace penstock::recorder {

void Devices::note(RecordingFile& file) noexcept {
  const std::uint64_t fresh = seen_.load() & ~noted_;
  if (fresh == 0) return;
  noted_ |= fresh;
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return;
  using GetName = int (*)(char* name, int bytes, int device);
  const auto name_of = reinterpret_cast<GetName>(::dlsym(driver, "cuDeviceGetName"));
  for (std::uint32_t device = 0; device < 64 && name_of != nullptr; ++device) {
    char name[128];
    const bool is_fresh = (fresh >> device & 1) != 0;
    if (is_fresh && name_of(name, sizeof name, static_cast<int>(device)) == 0)
      file.add_text(recording::TextType::device, &device, sizeof device, name);
  }
}

}  // namespace penstock::recorder
