#include "fixed_batches.hpp"

#include "arrays.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <ranges>
#include <span>
#include <string>
#include <utility>

namespace penstock::python {
namespace {

bool are_alike(const Leaf& a, const Leaf& b) {
  const auto dims = [](const Leaf& leaf) { return std::span(leaf.dims.data(), leaf.dims.size()); };
  return a.framework == b.framework && a.dtype == b.dtype && std::ranges::equal(dims(a), dims(b));
}

// Fills all of `leaf` but the source.
bool read(Leaf& leaf, const nb::object& array) {
  Torch* const torch = Torch::get();
  NumPy* const numpy = NumPy::get();
  const bool known =
      torch != nullptr && torch->is_tensor_exactly(array.ptr())  ? torch->read(leaf, array.ptr())
      : numpy != nullptr && numpy->is_array_exactly(array.ptr()) ? numpy->read(leaf, array.ptr())
                                                                 : read_array(leaf, array.ptr());
  leaf.source = {};
  return known;
}

}  // namespace

FixedArray::FixedArray(nb::object array, const nb::object& mark) : array_(std::move(array)) {
  (void)read(as_made_, array_);
  if (as_made_.framework == Framework::torch) {
    memory_ = array_.attr("untyped_storage")();
    mark(array_);
  }
  own_ = uses();
}

FixedArray::Uses FixedArray::uses() const {
  Uses uses{.object = Py_REFCNT(array_.ptr())};
  if (memory_.is_valid()) {
    // PyTorch's trees of CUDA graphs ask these as well: torch/_inductor/cudagraph_trees.py.
    uses.tensor = nb::cast<long>(array_.attr("_use_count")());
    uses.memory_object = Py_REFCNT(memory_.ptr());
    uses.memory = Torch::get()->uses_of_storage(memory_);
  }
  return uses;
}

bool FixedArray::is_kept() const {
  const Uses now = uses();
  return now.object > own_.object || now.tensor > own_.tensor || now.memory_object > own_.memory_object ||
         now.memory > own_.memory;
}

void FixedArray::check() const {
  Leaf now;
  const bool is_read = read(now, array_);
  if (is_read && are_alike(now, as_made_) && (now.data == as_made_.data || now.bytes == 0)) return;
  throw InvalidArgument(
      "static=True hands out the same arrays again and again, and one of them was changed: it has another "
      "shape or other memory, or requires gradients. Change a copy: batch.clone(), or batch.detach() to "
      "require gradients.");
}

void refuse_kept() {
  throw InvalidArgument(
      "static=True: a batch is kept, and its memory is needed for the next one. An earlier batch, a view of "
      "it, "
      "the graph of a loss that was computed from it, or another iterator of this feed still has it. Keep "
      "copies "
      "(batch.clone()), drop such losses (loss.item()), raise prefetch_depth, or leave static out.");
}

bool FixedSet::is_kept() const {
  return std::ranges::any_of(arrays, [](const FixedArray& array) { return array.is_kept(); });
}

bool FixedBatches::Layout::is_of(const std::vector<Leaf>& leaves) const {
  return std::ranges::equal(arrays, leaves, are_alike);
}

bool FixedBatches::next_is_free() const {
  if (layouts_.empty()) return true;
  const Layout& latest = layouts_.front();
  return latest.turn >= latest.sets.size() || !latest.sets[latest.turn]->is_kept();
}

FixedBatches::Layout& FixedBatches::layout_of(const std::vector<Leaf>& leaves) {
  const auto known =
      std::ranges::find_if(layouts_, [&](const Layout& layout) { return layout.is_of(leaves); });
  if (known != layouts_.end()) {
    std::rotate(layouts_.begin(), known, known + 1);
    return layouts_.front();
  }
  if (layouts_.size() == kMostLayouts) {
    throw InvalidArgument(
        "static=True is for batches whose arrays have the same shapes and types, and this is the " +
        std::to_string(kMostLayouts + 1) +
        "th kind of batch. Pad the samples to a few lengths, or leave static out.");
  }
  Layout made;
  for (const Leaf& leaf : leaves) {
    Leaf& array = made.arrays.emplace_back(leaf);
    array.source = {};
    array.data = nullptr;
  }
  layouts_.insert(layouts_.begin(), std::move(made));
  return layouts_.front();
}

std::shared_ptr<FixedSet> FixedBatches::next(const std::vector<Leaf>& leaves) {
  Layout& layout = layout_of(leaves);
  if (layout.turn == layout.sets.size()) layout.sets.push_back(std::make_shared<FixedSet>());
  const std::shared_ptr<FixedSet> set = layout.sets[layout.turn];
  if (set->is_kept()) refuse_kept();
  for (const FixedArray& array : set->arrays) array.check();
  layout.turn = (layout.turn + 1) % sets_;
  return set;
}

void bind_fixed_batches(nb::module_& module) {
  nb::class_<FixedBatches>(module, "FixedBatches", "Memory at fixed addresses, for batches in turn.")
      .def(nb::init<std::size_t, nb::object>(), nb::arg("sets"), nb::arg("mark"))
      .def_prop_ro("sets", &FixedBatches::sets)
      .def("next_is_free", &FixedBatches::next_is_free,
           "False if somebody keeps the batch whose memory the next one would get.");
  module.def("refuse_kept", &refuse_kept, "Raises InvalidArgument for a batch that is kept.");
}

}  // namespace penstock::python
