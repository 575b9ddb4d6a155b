#include "feed/tensor_watch.hpp"

#include <penstock/data/batch_sampler.hpp>

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

/// True if `indices` is a NumPy array of int64 that lie side by side, each at least 0 and below `count`.
bool are_rows(nb::handle indices, std::uint64_t count) {
  Leaf leaf;
  NumPy* const numpy = NumPy::get();
  if (numpy == nullptr || !numpy->is_array_exactly(indices.ptr()) || !numpy->read(leaf, indices.ptr())) {
    return false;
  }
  if (leaf.ndim() != 1 || leaf.dtype.code != dlpack::kInt || leaf.dtype.bits != 64) return false;
  // As numbers without a sign, negative ones are large.
  return are_below({reinterpret_cast<const std::uint64_t*>(leaf.data), leaf.bytes / sizeof(std::uint64_t)},
                   count);
}

}  // namespace

TensorWatch::TensorWatch(std::vector<nb::object> tensors) {
  for (nb::object& tensor : tensors) watched_.push_back({std::move(tensor), {}, 0});
  for (Watched& watched : watched_) watched.is_read = read(watched, watched.version, watched.leaf);
}

bool TensorWatch::unchanged() const {
  return std::ranges::all_of(watched_, [](const Watched& watched) {
    std::int64_t version = 0;
    Leaf leaf;
    if (!watched.is_read || !read(watched, version, leaf)) return false;
    const Leaf& before = watched.leaf;
    const std::span dims(leaf.dims.data(), leaf.dims.size());
    return version == watched.version && leaf.data == before.data && leaf.dtype == before.dtype &&
           std::ranges::equal(dims, std::span(before.dims.data(), before.dims.size()));
  });
}

bool TensorWatch::read(const Watched& watched, std::int64_t& version, Leaf& leaf) {
  static PyObject* const name = PyUnicode_InternFromString("_version");
  const nb::object number = nb::steal(PyObject_GetAttr(watched.tensor.ptr(), name));
  if (!number.is_valid()) throw nb::python_error();
  version = nb::cast<std::int64_t>(number);
  return read_exactly(leaf, watched.tensor.ptr());
}

void bind_tensor_watch(nb::module_& module) {
  nb::class_<TensorWatch>(module, "TensorWatch", "Watches tensors of PyTorch.")
      .def(nb::init<std::vector<nb::object>>(), nb::arg("tensors"))
      .def("unchanged", &TensorWatch::unchanged,
           "True if none has another place, type or shape than at first, and PyTorch has written to none.");
  module.def("are_rows", &are_rows, nb::arg("indices").none(), nb::arg("count"),
             "True for a NumPy array of int64 that lie side by side, each at least 0 and below `count`.");
}

}  // namespace penstock::python
