#include "move/engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock::python {

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine", "Sends to one device.")
      .def(nb::new_(&Engine::open), nb::arg("spec"), nb::arg("cache_directory") = nb::none())
      .def("close", &Engine::close)
      .def("in_flight", &Engine::in_flight, "Sets of transfers that nobody waits for and that are not done.")
      .def(
          "reaches",
          [](const Engine& self, const Engine& other) { return self.device().can_reach(other.device()); },
          nb::arg("other"), "Whether copies on this device can name memory of the other.")
      .def_prop_ro(
          "ceilings",
          [](const Engine& self) {
            const LinkProfile& link = self.profile();
            return link.measured
                       ? std::pair(link.ceiling(CopyDirection::d2h), link.ceiling(CopyDirection::h2d))
                       : std::pair(0.0, 0.0);
          },
          "The link's measured bytes per second, from the device and to it; 0 if nobody has measured it.")
      .def(
          "pinned_memory",
          [](Engine& self) {
            const PinnedMemory now = self.pinned_memory();
            return std::pair(now.free_bytes + now.idle_bytes, now.holders);
          },
          "Bytes that the process may pin, with those that pools hold for later; and who holds how much.")
      .def(
          "made",
          [](const Engine& self, std::uintptr_t address) {
            return self.made(reinterpret_cast<const std::byte*>(address));
          },
          nb::arg("address"), "Whether an address of the device lies in a tensor that penstock has made.")
      .def_prop_ro("spec", [](const Engine& engine) { return engine.info().spec; })
      .def_prop_ro("memory_bytes", [](const Engine& engine) { return engine.device().memory().total; })
      .def_prop_ro("numa_node", [](const Engine& engine) { return engine.info().numa_node; })
      .def_prop_ro("is_cuda", &Engine::is_cuda)
      .def_prop_ro("index", &Engine::index);

  module.def("use_exchange_api", &Torch::use_exchange_api, nb::arg("use"));
}

}  // namespace penstock::python
