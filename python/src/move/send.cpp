#include "arrays.hpp"
#include "interpreter_lock.hpp"
#include "move/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ranges>
#include <utility>

namespace penstock::python {
namespace {

// Tensors smaller than this are not faster with PyTorch's copy.
constexpr std::size_t kPinnedByTorch = std::size_t{1} << 20;
// Moved in 1 ms or more, while thousands of other arrays are looked at.
constexpr std::size_t kFirstBlock = std::size_t{64} << 20;

// Returns the seconds that it took.
double pin_large(std::vector<Leaf>& leaves, Torch& torch) {
  double seconds = 0;
  for (Leaf& leaf : leaves) {
    if (leaf.bytes < kPinnedByTorch || is_pinned(leaf)) continue;
    const auto began = std::chrono::steady_clock::now();
    torch.pin(leaf);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  return seconds;
}

bool is_host(const Leaf& leaf) { return leaf.device.type == dlpack::kCpu || is_pinned(leaf); }

// While it lives, Python does not look for garbage: thousands of new tensors make it look several times, and
// the lock of the interpreter is held meanwhile.
class WithoutGarbageCollection {
 public:
  WithoutGarbageCollection() noexcept : was_on_(PyGC_Disable() != 0) {}
  ~WithoutGarbageCollection() {
    if (was_on_) PyGC_Enable();
  }
  WithoutGarbageCollection(const WithoutGarbageCollection&) = delete;
  WithoutGarbageCollection& operator=(const WithoutGarbageCollection&) = delete;

 private:
  const bool was_on_;
};

}  // namespace

nb::object Engine::make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                        bool for_torch) const {
  const dlpack::Device device{cuda_ ? dlpack::kCuda : dlpack::kCpu, cuda_ ? index() : 0};
  if (for_torch) return Torch::get()->make(leaf.view(storage, at, device));
  if (!cuda_) return NumPy::get()->make(leaf.view(storage, at, device));
  return make_array(std::static_pointer_cast<DeviceStorage>(storage), leaf, at, device);
}

std::vector<nb::object> Engine::make_all(const std::vector<Leaf>& leaves,
                                         const std::shared_ptr<Storage>& storage,
                                         const std::vector<std::byte*>& places) const {
  const WithoutGarbageCollection meanwhile;
  std::vector<nb::object> arrays;
  arrays.reserve(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const bool for_torch = (cuda_ && Torch::get() != nullptr) || leaves[i].framework == Framework::torch;
    arrays.push_back(make(leaves[i], storage, places[i], for_torch));
  }
  return arrays;
}

Flight Engine::send(nb::handle tree, nb::handle expand, bool pin, bool timed, const FilledSlot* slot) {
  Shipment shipment = load(tree, expand, pin, slot);
  if (shipment.nest.leaves().empty()) return finish(std::move(shipment));
  const std::optional<Stream> after = stream_of(shipment.flight);
  {
    const Unlocked unlocked;
    enqueue(shipment, {.after = after ? &*after : nullptr, .timed = timed});
  }
  return finish(std::move(shipment));
}

std::optional<Stream> Engine::stream_of(const Flight& flight) const {
  if (!cuda_ || Torch::get() == nullptr) return std::nullopt;
  return device_.wrap_stream(flight.stream_);
}

Shipment Engine::load(nb::handle tree, nb::handle expand, bool pin, const FilledSlot* slot) {
  reap();
  refuse_closed();
  Flight flight(shared_from_this());
  const auto count = [&flight](const Leaf& leaf) {
    if (flight.arrays_++ == 0 && leaf.ndim() > 0) flight.samples_ = static_cast<std::size_t>(leaf.shape()[0]);
  };
  Tree nest(tree, expand, [&](const Leaf& leaf) {
    if (!is_host(leaf)) {
      return cuda_ && leaf.device.index == index() ? Tree::Choice::leave : Tree::Choice::expand;
    }
    if (!cuda_ && slot != nullptr && slot->storage->contains(leaf.data)) {
      count(leaf);
      flight.bytes_left_ += leaf.bytes;
      return Tree::Choice::leave;
    }
    if (!cuda_ && owns(leaf.data)) return Tree::Choice::leave;
    count(leaf);
    return Tree::Choice::leaf;
  });
  Torch* torch = Torch::get();
  const bool cuda_torch = cuda_ && torch != nullptr;
  if (cuda_torch) flight.stream_ = torch->current_stream(index());
  if (cuda_torch && slot != nullptr && slot->locked && nest.has_expanded()) {
    // PyTorch takes the slot for pinned memory: what was moved by its own `to()` may still be on its way.
    flight.pending_.slot = slot->storage;
    flight.pending_.read_by_others = device_.create_event();
    flight.pending_.read_by_others->record(device_.wrap_stream(flight.stream_));
  }
  Shipment shipment{.flight = std::move(flight), .nest = std::move(nest)};
  if (shipment.nest.leaves().empty()) return shipment;
  fill_in(shipment, pin, slot);
  return shipment;
}

void Engine::fill_in(Shipment& shipment, bool pin, const FilledSlot* slot) {
  Flight& flight = shipment.flight;
  std::vector<Leaf>& leaves = shipment.nest.leaves();
  Torch* const torch = cuda_ ? Torch::get() : nullptr;
  if (pin && torch != nullptr) flight.pin_seconds_ = pin_large(leaves, *torch);
  Groups groups = group(leaves, slot, info().tuning);
  NestLayout layout = lay_out(leaves, groups);
  for (const Leaf& leaf : leaves) flight.bytes_ += leaf.bytes;
  flight.pending_.storage = allocate(layout.bytes, torch != nullptr);
  const auto keep_sources = [&](const std::vector<std::size_t>& members) {
    for (const std::size_t i : members) {
      if (!is_in(slot, leaves[i])) flight.pending_.sources.push_back(leaves[i].source);
    }
  };
  keep_sources(groups.alone);
  if (!groups.alone.empty()) keep_sources(groups.packed);  // they may travel with these
  if (std::ranges::any_of(leaves, [slot](const Leaf& leaf) { return is_in(slot, leaf); })) {
    flight.pending_.slot = slot->storage;
  }
  shipment.groups = std::move(groups);
  shipment.offsets = std::move(layout.offsets);
}

Flight Engine::finish(Shipment shipment) {
  Flight& flight = shipment.flight;
  const std::vector<Leaf>& leaves = shipment.nest.leaves();
  std::vector<nb::object> results;
  if (!leaves.empty()) {
    const std::shared_ptr<Storage>& storage = flight.pending_.storage;
    const bool cuda_torch = cuda_ && Torch::get() != nullptr;
    if (!cuda_torch) static_cast<PoolStorage&>(*storage).set_transfers(flight.pending_.transfers);
    results = make_all(leaves, storage, shipment.destinations());
  }
  flight.result_ = shipment.nest.build(results);
  return std::move(flight);
}

void Engine::enqueue(Shipment& shipment, const CopyOptions& common) {
  Flight& flight = shipment.flight;
  const std::vector<Leaf>& leaves = shipment.nest.leaves();
  const Groups& groups = shipment.groups;
  const std::vector<std::byte*> destinations = shipment.destinations();
  auto& transfers = flight.pending_.transfers;
  transfers.reserve(groups.alone.size() + 2);
  CopyOptions options = common;
  options.destination_kind = MemoryKind::device;
  if (!groups.together.empty()) {
    const std::size_t first = groups.together.front();
    std::byte* const destination = destinations[first] - (leaves[first].data - groups.slot.data());
    options.source_kind = MemoryKind::registered;
    transfers.push_back(engine()->copy(destination, groups.slot.data(), groups.slot.size(), options));
  }
  enqueue_others(flight, groups, leaves, destinations, common);
}

void Engine::enqueue_others(Flight& flight, const Groups& groups, const std::vector<Leaf>& leaves,
                            const std::vector<std::byte*>& destinations, const CopyOptions& common) const {
  auto& transfers = flight.pending_.transfers;
  CopyOptions options = common;
  options.destination_kind = MemoryKind::device;
  const auto piece = [&](std::size_t i) {
    return TransferPiece{leaves[i].data, destinations[i], leaves[i].bytes};
  };
  std::vector<TransferPiece> packed;
  for (const std::size_t i : groups.packed) packed.push_back(piece(i));
  const auto send = [&](std::vector<TransferPiece>& pieces, TransferPath path) {
    options.source_kind = MemoryKind::pageable;
    options.path = path;
    transfers.push_back(engine()->copy_pieces(pieces, CopyDirection::h2d, options));
    pieces.clear();
  };
  // Large arrays in pageable memory travel as one stream of bytes, and small ones join it. The stream begins
  // before all are looked at: to ask the driver for thousands of kinds takes as long as to move 100 MB.
  std::vector<TransferPiece> staged;
  std::size_t bytes = 0;
  std::size_t block = kFirstBlock;
  for (const std::size_t i : groups.alone) {
    const MemoryKind kind = is_pinned(leaves[i]) ? MemoryKind::pinned : device_.kind_of(leaves[i].data);
    if (kind != MemoryKind::pageable) {
      options.source_kind = is_pinned(leaves[i]) ? std::optional(MemoryKind::pinned) : std::nullopt;
      options.path = TransferPath::automatic;
      transfers.push_back(engine()->copy(destinations[i], leaves[i].data, leaves[i].bytes, options));
      continue;
    }
    staged.insert(staged.end(), packed.begin(), packed.end());
    packed.clear();
    staged.push_back(piece(i));
    bytes += leaves[i].bytes;
    if (bytes < block) continue;
    send(staged, TransferPath::staged);
    bytes = 0;
    block *= 2;
  }
  if (!staged.empty()) send(staged, TransferPath::staged);
  if (!packed.empty()) send(packed, TransferPath::automatic);
}

}  // namespace penstock::python
