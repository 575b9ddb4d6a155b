#include "move/fetch.hpp"

#include "arrays.hpp"
#include "interpreter_lock.hpp"
#include "move/groups.hpp"
#include "move/tree.hpp"

#include <penstock/core/error.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using EnginePointer = std::shared_ptr<Engine>;

HostTarget make_target(const Leaf& leaf, std::shared_ptr<Storage> storage, MemoryKind kind) {
  std::byte* const data = storage->data();
  return {make_on_host(leaf, std::move(storage), data, leaf.framework == Framework::torch), data, kind};
}

// Each result has memory of its own: torch.save writes the whole of it.
HostTarget make_pageable(const Leaf& leaf, const Engine& engine) {
  return make_target(leaf, engine.allocate_on_host(leaf.bytes), MemoryKind::pageable);
}

/// How results get locked memory.
struct Pinning {
  EnginePointer engine;  ///< of a GPU

  [[nodiscard]] bool is_pinned(const Leaf& leaf) const {
    return leaf.bytes == 0 || engine->device().kind_of(leaf.data) != MemoryKind::pageable;
  }
  [[nodiscard]] HostTarget make(const Leaf& leaf, const EnginePointer& of_leaf) const {
    Engine& owner = of_leaf && of_leaf->is_cuda() ? *of_leaf : *engine;
    return make_target(leaf, owner.allocate_pinned(leaf.bytes), MemoryKind::pinned);
  }
};

nb::object fetch(nb::handle tree, nb::handle expand, std::vector<EnginePointer> host_engines,
                 nb::object cuda_engine, std::optional<EnginePointer> pinning_engine) {
  const ArrayEngines all{std::move(host_engines), std::move(cuda_engine)};
  std::optional<Pinning> pinning;
  if (pinning_engine) pinning = {*pinning_engine};
  std::vector<EnginePointer> engines;
  Tree nest(tree, expand, [&](const Leaf& leaf) {
    EnginePointer engine = all.find(leaf);
    if (!engine && (!pinning || pinning->is_pinned(leaf))) return Tree::Choice::leave;
    engines.push_back(std::move(engine));
    return Tree::Choice::leaf;
  });
  const std::vector<Leaf>& leaves = nest.leaves();
  std::vector<HostTarget> targets;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    targets.push_back(pinning ? pinning->make(leaves[i], engines[i]) : make_pageable(leaves[i], *engines[i]));
  }
  copy_to_host(leaves, engines, targets);
  std::vector<nb::object> results;
  for (HostTarget& target : targets) results.push_back(std::move(target.array));
  return nest.build(results);
}

std::string description(const Leaf& leaf) {
  return leaf.dtype_name() + " of shape " + nb::cast<std::string>(nb::str(shape_of(leaf)));
}

bool is_like(const Leaf& a, const Leaf& b) {
  return a.dtype == b.dtype && std::equal(a.shape(), a.shape() + a.ndim(), b.shape(), b.shape() + b.ndim());
}

bool lies_like(const Leaf& a, const Leaf& b) {
  for (std::int32_t axis = 0; axis < a.ndim(); ++axis) {
    if (a.shape()[axis] > 1 && a.strides()[axis] != b.strides()[axis]) return false;
  }
  return true;
}

/// The axes, those with the largest strides first.
std::vector<std::int32_t> order_of_axes(const Leaf& leaf) {
  std::vector<std::int32_t> axes(static_cast<std::size_t>(leaf.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  std::stable_sort(axes.begin(), axes.end(),
                   [&](std::int32_t a, std::int32_t b) { return leaf.strides()[a] > leaf.strides()[b]; });
  return axes;
}

/// The array of `out` that gets the bytes of `leaf`, whose elements are put into its order before.
HostTarget take_target(Leaf& leaf, const Tree::Place& place, nb::handle outputs) {
  const nb::object array = stay_if_ended([&]() -> nb::object { return outputs.attr("take")(place.object); });
  if (PyUnicode_Check(array.ptr())) {
    throw InvalidArgument(place.name + " " + nb::cast<std::string>(array));
  }
  Leaf into;
  if (!read_exactly(into, array.ptr())) {
    throw InvalidArgument(place.name +
                          " has elements that lie apart or overlap, or that are not plain numbers.");
  }
  if (!is_like(leaf, into)) {
    throw InvalidArgument(place.name + " is " + description(into) + ", and the array to copy is " +
                          description(leaf) + ".");
  }
  if (leaf.bytes > 0 && !lies_like(leaf, into)) {
    const nb::object ordered = stay_if_ended(
        [&]() -> nb::object { return outputs.attr("in_order")(leaf.source, order_of_axes(into)); });
    if (!read_exactly(leaf, ordered.ptr()) || !lies_like(leaf, into)) {
      throw InvalidArgument(place.name + " has other strides than the array to copy.");
    }
  }
  return {array, const_cast<std::byte*>(into.data), std::nullopt};
}

/// Throws InvalidArgument if bytes would be written twice, or before they are read.
void refuse_overlap(const std::vector<Leaf>& leaves, const std::vector<EnginePointer>& engines,
                    const std::vector<HostTarget>& targets, const std::vector<Tree::Place>& places) {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    std::size_t leaf;
    bool written;
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (leaf.bytes == 0) continue;
    ranges.push_back({targets[i].data, targets[i].data + leaf.bytes, i, true});
    const bool is_host = !engines[i] || !engines[i]->is_cuda();
    if (is_host && leaf.data != targets[i].data) {
      ranges.push_back({leaf.data, leaf.data + leaf.bytes, i, false});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* read = nullptr;  // those that reach furthest
  const Range* written = nullptr;
  for (const Range& range : ranges) {
    const Range* other = written != nullptr && written->end > range.begin ? written : nullptr;
    if (other == nullptr && range.written && read != nullptr && read->end > range.begin) other = read;
    if (other != nullptr) {
      const bool both = range.written && other->written;
      const Range& target = range.written ? range : *other;
      throw InvalidArgument(places[target.leaf].name + " shares memory with " +
                            (both ? places[other->leaf].name : "an array to copy") + ".");
    }
    const Range*& furthest = range.written ? written : read;
    if (furthest == nullptr || furthest->end < range.end) furthest = &range;
  }
}

void fetch_into(nb::handle tree, nb::handle out, nb::handle expand, nb::handle outputs,
                std::vector<EnginePointer> host_engines, nb::object cuda_engine) {
  const ArrayEngines all{std::move(host_engines), std::move(cuda_engine)};
  Tree nest(tree, expand, [](const Leaf&) { return Tree::Choice::leaf; });
  std::vector<Leaf>& leaves = nest.leaves();
  const std::vector<Tree::Place> places = nest.match(out, outputs, "out");
  std::vector<HostTarget> targets;
  std::vector<EnginePointer> engines;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    targets.push_back(take_target(leaves[i], places[i], outputs));
    engines.push_back(all.find(leaves[i]));
  }
  refuse_overlap(leaves, engines, targets, places);
  stay_if_ended([&] { outputs.attr("will_be_written")(); });
  copy_to_host(leaves, engines, targets);
}

// Waits at the end of a scope, however that is left: the transfers write to memory of its caller.
class WaitForEnd {
 public:
  explicit WaitForEnd(const PendingTransfers& pending) noexcept : pending_(pending) {}
  ~WaitForEnd() { pending_.wait(); }
  WaitForEnd(const WaitForEnd&) = delete;
  WaitForEnd& operator=(const WaitForEnd&) = delete;

 private:
  const PendingTransfers& pending_;
};

}  // namespace

void Engine::fetch(const std::vector<Fetch>& fetches) {
  reap();
  Torch* torch = cuda_ ? Torch::get() : nullptr;
  const StreamHandle current = torch == nullptr ? nullptr : torch->current_stream(index());
  std::vector<std::shared_ptr<DeviceStorage>> written_by_us;
  for (const Fetch& fetch : fetches) {
    if (fetch.leaf->framework != Framework::penstock) continue;
    written_by_us.push_back(nb::cast<const DeviceArray&>(fetch.leaf->source).storage);
  }
  const Unlocked unlocked;
  // The work that writes the tensors is queued on PyTorch's current stream. An Array knows its own transfers.
  const Stream intake = device_.create_stream();
  if (torch != nullptr) {
    Event written = device_.create_event();
    written.record(device_.wrap_stream(current));
    intake.wait(written);
  }
  for (const auto& storage : written_by_us) storage->wait_on(intake);
  CopyOptions options;
  options.source_kind = MemoryKind::device;
  options.after = &intake;
  PendingTransfers pending;
  const WaitForEnd until_done(pending);
  std::vector<TransferPiece> packed;
  std::vector<TransferPiece> staged;
  for (const Fetch& fetch : fetches) {
    const Leaf& leaf = *fetch.leaf;
    const MemoryKind kind = fetch.kind ? *fetch.kind : device_.kind_of(fetch.to);
    if (!travels_alone(leaf.bytes, kind, info().tuning)) {
      packed.push_back({leaf.data, fetch.to, leaf.bytes});
    } else if (kind == MemoryKind::pageable) {
      staged.push_back({leaf.data, fetch.to, leaf.bytes});
    } else {
      options.destination_kind = fetch.kind;
      pending.transfers.push_back(engine()->copy(fetch.to, leaf.data, leaf.bytes, options));
    }
  }
  options.destination_kind = MemoryKind::pageable;
  if (!packed.empty()) {
    pending.transfers.push_back(engine()->copy_pieces(packed, CopyDirection::d2h, options));
  }
  if (!staged.empty()) {
    options.path = TransferPath::staged;
    pending.transfers.push_back(engine()->copy_pieces(staged, CopyDirection::d2h, options));
  }
  for (const auto& transfer : pending.transfers) transfer.synchronize();
}

EnginePointer ArrayEngines::find(const Leaf& leaf) const {
  if (leaf.device.type == dlpack::kCuda) return nb::cast<EnginePointer>(of_gpu(leaf.device.index));
  for (const auto& engine : of_host_devices) {
    if (engine->owns(leaf.data)) return engine;
  }
  return nullptr;
}

void copy_to_host(const std::vector<Leaf>& leaves, const std::vector<EnginePointer>& engines,
                  const std::vector<HostTarget>& targets) {
  std::map<Engine*, std::vector<Fetch>> by_engine;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].data == targets[i].data) continue;
    by_engine[engines[i].get()].push_back({&leaves[i], targets[i].data, targets[i].kind});
  }
  for (const auto& [engine, fetches] : by_engine) {
    if (engine != nullptr) {
      engine->fetch(fetches);
      continue;
    }
    const Unlocked unlocked;
    for (const auto& [leaf, to, kind] : fetches) {
      if (leaf->bytes > 0) std::memcpy(to, leaf->data, leaf->bytes);
    }
  }
}

void bind_fetch(nb::module_& module) {
  module.def("fetch", &fetch, nb::arg("tree").none(), nb::arg("expand"), nb::arg("host_engines"),
             nb::arg("cuda_engine"), nb::arg("pinning_engine") = nb::none(),
             "A nest with its arrays in new memory of the host.");
  module.def("fetch_into", &fetch_into, nb::arg("tree").none(), nb::arg("out").none(), nb::arg("expand"),
             nb::arg("outputs"), nb::arg("host_engines"), nb::arg("cuda_engine"),
             "Copies the arrays of a nest into those of another.");
}

}  // namespace penstock::python
