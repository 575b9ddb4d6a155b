#include "cupti.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace penstock::recorder {

namespace {

constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr std::size_t kLongest = 4096;

void* open_in(std::string_view folder, const char* rest) noexcept {
  for (const char* const name : kNames) {
    char path[kLongest];
    const int length = std::snprintf(path, sizeof path, "%.*s%s/%s", static_cast<int>(folder.size()),
                                     folder.data(), rest, name);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) continue;
    if (void* const library = ::dlopen(path, RTLD_LAZY | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

struct Neighbours {
  char paths[8][kLongest];
  std::size_t count;
};

/// Notes where the CUDA runtime and PyTorch were loaded from.
int note_neighbour(dl_phdr_info* info, std::size_t, void* data) noexcept {
  auto& found = *static_cast<Neighbours*>(data);
  const std::string_view path = info->dlpi_name;
  for (const std::string_view name :
       {"/libcudart.so", "/libtorch_cuda.so", "/libc10_cuda.so", "/libcublas.so"}) {
    if (path.find(name) == std::string_view::npos || path.size() >= kLongest) continue;
    if (found.count < std::size(found.paths))
      std::memcpy(found.paths[found.count++], path.data(), path.size() + 1);
    break;
  }
  return 0;
}

/// pip's packages: nvidia/cu13/lib has the runtime and CUPTI; of CUDA 12, each has its own folder below
/// nvidia. PyTorch's libraries lie in torch/lib beside nvidia. A toolkit has extras/CUPTI beside its lib64.
void* open_beside_neighbours() noexcept {
  static Neighbours found;  // large for a stack; this is called once
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t size, void* data) { return note_neighbour(info, size, data); },
      &found);
  for (std::size_t i = 0; i < found.count; ++i) {
    const std::string_view path = found.paths[i];
    const std::string_view folder(path.data(), path.rfind('/'));
    for (const char* const rest : {"", "/../../cuda_cupti/lib", "/../extras/CUPTI/lib64",
                                   "/../../nvidia/cu13/lib", "/../../nvidia/cuda_cupti/lib"}) {
      if (void* const library = open_in(folder, rest)) return library;
    }
  }
  return nullptr;
}

void* open_library() noexcept {
  // For tests, and for a CUPTI in an unusual place.
  if (const char* const named = std::getenv("PENSTOCK_LIBCUPTI"))
    return ::dlopen(named, RTLD_LAZY | RTLD_LOCAL);
  for (const char* const name : kNames) {
    if (void* const library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  }
  if (void* const library = open_beside_neighbours()) return library;
  for (const char* const name : kNames) {
    if (void* const library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL)) return library;
  }
  if (const char* const home = std::getenv("CUDA_HOME")) {
    if (void* const library = open_in(home, "/extras/CUPTI/lib64")) return library;
  }
  return open_in("/usr/local/cuda", "/extras/CUPTI/lib64");
}

template <typename Function>
bool find(void* library, const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

bool open_cupti(Cupti& cupti, const char*& why) noexcept {
  void* const library = open_library();
  if (library == nullptr) {
    why =
        "CUPTI was not found, so nothing could be recorded. It comes with PyTorch, or: pip install "
        "nvidia-cuda-cupti";
    return false;
  }
  const bool complete = find(library, "cuptiGetVersion", cupti.get_version) &&
                        find(library, "cuptiGetTimestamp", cupti.get_timestamp) &&
                        find(library, "cuptiSubscribe", cupti.subscribe) &&
                        find(library, "cuptiUnsubscribe", cupti.unsubscribe) &&
                        find(library, "cuptiEnableCallback", cupti.enable_callback) &&
                        find(library, "cuptiGetCallbackName", cupti.callback_name) &&
                        find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks) &&
                        find(library, "cuptiActivityEnable", cupti.enable) &&
                        find(library, "cuptiActivityDisable", cupti.disable) &&
                        find(library, "cuptiActivityGetNextRecord", cupti.next_record) &&
                        find(library, "cuptiActivityGetNumDroppedRecords", cupti.dropped) &&
                        find(library, "cuptiActivityFlushAll", cupti.flush_all);
  if (!complete) {
    why = "This CUPTI lacks functions that the recorder needs, so nothing was recorded.";
    return false;
  }
  find(library, "cuptiActivityEnableDriverApi", cupti.enable_driver_call);
  find(library, "cuptiActivityEnableRuntimeApi", cupti.enable_runtime_call);
  find(library, "cuptiGetThreadIdType", cupti.thread_id_type);
  find(library, "cuptiNvtxInitialize2", cupti.start_nvtx);
  return true;
}

}  // namespace penstock::recorder
