#include "move/fixed_batches.hpp"

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
  const bool known = read_exactly(leaf, array.ptr()) || read_array(leaf, array.ptr());
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
    uses.tensor = Torch::uses_of_tensor(array_);
    uses.memory_object = Py_REFCNT(memory_.ptr());
    uses.memory = Torch::uses_of_storage(memory_);
  }
  return uses;
}

bool FixedArray::is_kept() const {
  const Uses now = uses();
  return now.object > own_.object || now.tensor > own_.tensor || now.memory_object > own_.memory_object ||
         now.memory > own_.memory;
}

bool FixedArray::was_changed() const {
  Leaf now;
  const bool is_same =
      read(now, array_) && are_alike(now, as_made_) && (now.data == as_made_.data || now.bytes == 0);
  return !is_same || (memory_.is_valid() && !array_.attr("grad").is_none());
}

bool are_kept(const std::vector<FixedArray>& arrays) {
  return std::ranges::any_of(arrays, [](const FixedArray& array) { return array.is_kept(); });
}

bool were_changed(const std::vector<FixedArray>& arrays) {
  return std::ranges::any_of(arrays, [](const FixedArray& array) { return array.was_changed(); });
}

void refuse_kept() {
  throw InvalidArgument(
      "static=True: a batch is kept, and its memory is needed for the next one. Somebody still has the "
      "batch, a view of it, or a loss whose graph has saved it; it may be a variable of an earlier loop. "
      "Keep copies: batch.clone(), loss.item(). To go on, drop it and call next() again.");
}

void refuse_changed() {
  throw InvalidArgument(
      "static=True hands out the same arrays again and again, and one of them was changed: it has another "
      "shape, other memory or a gradient, or requires one. Change a copy: batch.clone(), or batch.detach() "
      "to require gradients.");
}

void FixedSet::hand_out(StreamHandle on) {
  stream = on;
  number = (*handed_out)++;
}

bool FixedBatches::Layout::is_of(const std::vector<Leaf>& leaves) const {
  return std::ranges::equal(arrays, leaves, are_alike);
}

std::optional<std::size_t> FixedBatches::find_free(const Layout& layout) const {
  std::optional<std::size_t> found;
  for (std::size_t k = 0; k < sets_; ++k) {
    const std::size_t place = (layout.turn + k) % sets_;
    if (place >= layout.sets.size()) {
      if (!found) found = layout.sets.size();
      continue;
    }
    const FixedSet& set = *layout.sets[place];
    const bool is_old = set.number < *handed_out_ && *handed_out_ - set.number >= sets_;
    if (found && !is_old) continue;
    if (!are_kept(set.arrays)) {
      if (!found) found = place;
    } else if (is_old) {
      return std::nullopt;
    }
  }
  return found;
}

void FixedBatches::check(FixedSet& set) {
  if (!were_changed(set.arrays)) return;
  set.arrays.clear();
  refuse_changed();
}

bool FixedBatches::next_is_free() {
  if (layouts_.empty()) return true;
  Layout& latest = layouts_.front();
  const std::optional<std::size_t> place = find_free(latest);
  if (place && *place < latest.sets.size()) check(*latest.sets[*place]);
  return place.has_value();
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
  const std::optional<std::size_t> place = find_free(layout);
  if (!place) refuse_kept();
  if (*place == layout.sets.size()) {
    layout.sets.push_back(std::make_shared<FixedSet>());
    layout.sets.back()->handed_out = handed_out_;
  }
  const std::shared_ptr<FixedSet> set = layout.sets[*place];
  check(*set);
  set->number = FixedSet::kNotHandedOut;
  layout.turn = (*place + 1) % sets_;
  return set;
}

void bind_fixed_batches(nb::module_& module) {
  nb::class_<FixedBatches>(module, "FixedBatches", "Memory at fixed addresses, for batches in turn.")
      .def(nb::init<std::size_t, nb::object>(), nb::arg("sets"), nb::arg("mark"))
      .def_prop_ro("sets", &FixedBatches::sets)
      .def("next_is_free", &FixedBatches::next_is_free,
           "False if somebody keeps batches whose memory the next one needs.");
  module.def("refuse_kept", &refuse_kept, "Raises InvalidArgument for a batch that is kept.");
}

}  // namespace penstock::python
