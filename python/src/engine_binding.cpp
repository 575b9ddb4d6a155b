#include "arrays.hpp"
#include "engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <utility>

namespace penstock::python {
namespace {

using EnginePointer = std::shared_ptr<Engine>;

// The engine of the device that an array lies on; null for arrays of the host.
EnginePointer engine_of(const Leaf& leaf, const std::vector<EnginePointer>& host_engines,
                        nb::handle cuda_engine) {
  if (leaf.device.type == dlpack::kCuda) return nb::cast<EnginePointer>(cuda_engine(leaf.device.index));
  for (const auto& engine : host_engines) {
    if (engine->owns(leaf.data)) return engine;
  }
  return nullptr;
}

nb::object fetch(nb::handle tree, nb::handle expand, const std::vector<EnginePointer>& host_engines,
                 nb::handle cuda_engine) {
  std::vector<EnginePointer> engines;
  Tree nest(tree, expand, [&](const Leaf& leaf) {
    EnginePointer engine = engine_of(leaf, host_engines, cuda_engine);
    if (!engine) return Tree::Choice::leave;
    engines.push_back(std::move(engine));
    return Tree::Choice::leaf;
  });
  const auto& leaves = nest.leaves();
  std::map<Engine*, std::vector<std::size_t>> by_engine;
  for (std::size_t i = 0; i < leaves.size(); ++i) by_engine[engines[i].get()].push_back(i);
  std::vector<nb::object> results(leaves.size());
  for (const auto& [engine, indices] : by_engine) {
    std::vector<const Leaf*> group;
    for (std::size_t i : indices) group.push_back(&leaves[i]);
    const auto storages = engine->fetch(group);
    for (std::size_t k = 0; k < indices.size(); ++k) {
      const Leaf& leaf = leaves[indices[k]];
      const TensorView view = leaf.view(storages[k], storages[k]->data(), {});
      results[indices[k]] =
          leaf.framework == Framework::torch ? Torch::get()->make(view) : NumPy::get()->make(view);
    }
  }
  return nest.build(results);
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Flight>(module, "Flight", "A nest on its way to a device.")
      .def("land", &Flight::land, "The nest with its arrays on the device; callable once.")
      .def("release_sources", &Flight::release_sources,
           "Blocks until the arrays that were sent are no longer read.")
      .def_prop_ro("bytes", &Flight::bytes, "Bytes of the arrays that are sent.")
      .def_prop_ro("arrays", &Flight::arrays, "Number of arrays that are sent.")
      .def_prop_ro("samples", &Flight::samples,
                   "Extent of the first array's first axis; 0 if there is none.");

  nb::class_<Engine>(module, "Engine", "Sends to one device.")
      .def(nb::new_(&Engine::open), nb::arg("spec"), nb::arg("cache_directory") = nb::none())
      .def(
          "send",
          [](Engine& self, nb::handle tree, nb::handle expand, bool pin) {
            return self.send(tree, expand, pin);
          },
          nb::arg("tree").none(), nb::arg("expand"), nb::arg("pin") = false)
      .def("close", &Engine::close)
      .def("in_flight", &Engine::in_flight, "Sets of transfers that nobody waits for and that are not done.")
      .def_prop_ro("spec", [](const Engine& engine) { return engine.info().spec; })
      .def_prop_ro("memory_bytes", [](const Engine& engine) { return engine.device().memory().total; })
      .def_prop_ro("numa_node", [](const Engine& engine) { return engine.info().numa_node; })
      .def_prop_ro("is_cuda", &Engine::is_cuda)
      .def_prop_ro("index", &Engine::index);

  module.def("fetch", &fetch, nb::arg("tree").none(), nb::arg("expand"), nb::arg("host_engines"),
             nb::arg("cuda_engine"));
  module.def("use_exchange_api", &Torch::use_exchange_api, nb::arg("use"));
}

}  // namespace penstock::python
