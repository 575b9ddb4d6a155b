#include "move/weight_save.hpp"

#include "arrays.hpp"
#include "core/shared/replace_file.hpp"
#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "move/fetch.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/save_weights.hpp>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

// Headers of one program differ by some digits: the same memory should do for all of its files.
constexpr std::size_t kBlockAlignment = std::size_t{2} << 20;

Leaf read_leaf(const std::string& name, nb::handle array) {
  Leaf leaf;
  if (!read_array(leaf, array.ptr()) && !read_exactly(leaf, array.ptr())) {
    throw InvalidArgument("tensor '" + name +
                          "' has elements that lie apart or overlap, or that are not "
                          "plain numbers.");
  }
  return leaf;
}

/// By name, for arrays that hold the bytes of another type: the format's name of the type, and the shape.
using Opaque = std::map<std::string, std::pair<std::string, Shape>>;

NewWeight describe(const std::string& name, const Leaf& leaf, const Opaque& opaque) {
  NewWeight weight{name, {}, {leaf.shape(), leaf.shape() + leaf.ndim()}};
  const auto given = opaque.find(name);
  if (given != opaque.end()) {
    std::tie(weight.type, weight.shape) = given->second;
  } else if (const auto dtype = known_dtype(leaf.dtype)) {
    weight.type = weight_type(*dtype);
  } else {
    throw Unsupported("tensor '" + name + "': penstock does not write " + leaf.dtype_name() +
                      " to .safetensors files. Convert it first.");
  }
  return weight;
}

std::shared_ptr<WeightSave> copy_weights(const std::vector<std::string>& names, const nb::list& arrays,
                                         const Opaque& opaque,
                                         const std::map<std::string, std::string>& metadata,
                                         std::vector<std::shared_ptr<Engine>> host_engines,
                                         nb::object cuda_engine,
                                         std::optional<std::shared_ptr<WeightSave>> kept) {
  std::shared_ptr<Engine> owner = host_engines.front();
  const ArrayEngines all{std::move(host_engines), std::move(cuda_engine)};
  std::vector<Leaf> leaves;
  std::vector<NewWeight> weights;
  std::vector<std::shared_ptr<Engine>> engines;
  for (std::size_t i = 0; i < names.size(); ++i) {
    leaves.push_back(read_leaf(names[i], arrays[i]));
    weights.push_back(describe(names[i], leaves.back(), opaque));
    engines.push_back(all.find(leaves.back()));
    if (engines.back() && engines.back()->is_cuda() && !owner->is_cuda()) owner = engines.back();
  }
  const WeightFileLayout layout = lay_out_weights(weights, metadata);
  std::shared_ptr<WeightSave> save;
  if (kept && (*kept)->serves(owner, layout.bytes)) {
    save = std::move(*kept);
    save->begin(layout.bytes);
  } else {
    if (kept) (*kept)->release();  // before other memory is taken
    save = std::make_shared<WeightSave>(owner, layout.bytes);
  }
  std::memcpy(save->data(), layout.head.data(), layout.head.size());
  std::vector<HostTarget> targets;
  for (const std::size_t offset : layout.offsets) {
    targets.push_back({nb::none(), save->data() + offset, save->kind()});
  }
  copy_to_host(leaves, engines, targets);
  return save;
}

}  // namespace

WeightSave::WeightSave(std::shared_ptr<Engine> engine, std::size_t bytes)
    : engine_(std::move(engine)),
      capacity_(align_up(bytes, kBlockAlignment)),
      memory_(engine_->is_cuda() ? engine_->allocate_pinned(capacity_)
                                 : engine_->allocate_on_host(capacity_)),
      bytes_(bytes) {}

bool WeightSave::serves(const std::shared_ptr<Engine>& engine, std::size_t bytes) const noexcept {
  return engine == engine_ && bytes <= capacity_ && align_up(bytes, kBlockAlignment) > capacity_ / 2;
}

void WeightSave::begin(std::size_t bytes) {
  bytes_ = bytes;
  stop_ = false;
}

void WeightSave::write(const std::filesystem::path& file) const {
  const Unlocked unlocked;
  replace_file(file, std::span(data(), bytes_), &stop_);
}

void bind_weight_save(nb::module_& module) {
  nb::class_<WeightSave>(module, "WeightSave", "The bytes of a .safetensors file in memory of the host.")
      .def("write", &WeightSave::write, nb::arg("file"), "Writes the file whole, or leaves what is there.")
      .def("cancel", &WeightSave::cancel, "Has `write` end soon.");
  module.def("copy_weights", &copy_weights, nb::arg("names"), nb::arg("arrays"), nb::arg("opaque"),
             nb::arg("metadata"), nb::arg("host_engines"), nb::arg("cuda_engine"), nb::arg("kept").none(),
             "Copies tensors to where they lie in a .safetensors file. Blocks until the bytes are there.");
}

}  // namespace penstock::python
