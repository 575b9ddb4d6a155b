#include "move/pluggable_allocator.hpp"

#include "interpreter_lock.hpp"

#include <penstock/device/fixed_memory.hpp>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

namespace {

struct Taken {
  int region = 0;
  std::shared_ptr<FixedMemory> memory;
};

/// What PyTorch has, by address. Never destroyed: PyTorch may give some back when the program ends.
struct Allocator {
  std::mutex mutex;
  std::map<void*, Taken> taken;
};
Allocator& allocator() {
  static auto& object = *new Allocator;
  return object;
}

thread_local int current_region = 0;

std::vector<std::shared_ptr<FixedMemory>> memory_of(int region) {
  const std::lock_guard lock(allocator().mutex);
  std::vector<std::shared_ptr<FixedMemory>> found;
  for (const auto& [address, taken] : allocator().taken) {
    if (taken.region == region) found.push_back(taken.memory);
  }
  return found;
}

}  // namespace

void bind_pluggable_allocator(nb::module_& module) {
  nb::class_<FixedMemory>(module, "FixedMemory", "GPU memory whose pages may leave while its addresses stay.")
      .def_prop_ro("gpu", &FixedMemory::gpu)
      .def_prop_ro("address",
                   [](const FixedMemory& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def_prop_ro("nbytes", &FixedMemory::bytes)
      .def("is_free", &FixedMemory::is_free, nb::call_guard<Unlocked>(),
           "True once PyTorch has given it back.")
      .def("drop_pages", &FixedMemory::drop_pages, nb::call_guard<Unlocked>(),
           "Waits for the work on the GPU.")
      .def("take_pages", &FixedMemory::take_pages, nb::call_guard<Unlocked>(), "Raises OutOfMemory.");
  module.def("memory_of_region", &memory_of, nb::arg("region"), "What PyTorch has taken for a region.");
  module.def(
      "enter_region", [](int region) { return std::exchange(current_region, region); }, nb::arg("region"),
      "Has this thread take memory for another region. Returns the earlier one.");
}

}  // namespace penstock::python

extern "C" {

/// Null: there is no memory. PyTorch raises its own error then.
__attribute__((visibility("default"))) void* penstock_fixed_allocate(ssize_t bytes, int gpu,
                                                                     void* /*stream*/) {
  using namespace penstock::python;
  try {
    auto memory = std::make_shared<penstock::FixedMemory>(gpu, static_cast<std::size_t>(bytes));
    void* const data = memory->data();
    const std::lock_guard lock(allocator().mutex);
    allocator().taken[data] = {current_region, std::move(memory)};
    return data;
  } catch (...) {
    return nullptr;
  }
}

__attribute__((visibility("default"))) void penstock_fixed_free(void* data, ssize_t, int, void*) {
  using namespace penstock::python;
  std::unique_lock lock(allocator().mutex);
  const auto node = allocator().taken.extract(data);
  lock.unlock();  // others need not wait for the GPU
  if (node) node.mapped().memory->free();
}
}
