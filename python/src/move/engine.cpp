#include "move/engine.hpp"

#include "arrays.hpp"
#include "interpreter_lock.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/log.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ranges>
#include <utility>

namespace penstock::python {
namespace {

// Tensors smaller than this are not faster with PyTorch's copy.
constexpr std::size_t kPinnedByTorch = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 256;
// Moved in 1 ms or more, while thousands of other arrays are looked at.
constexpr std::size_t kFirstBlock = std::size_t{64} << 20;

bool is_pinned(const Leaf& leaf) { return leaf.device.type == dlpack::kCudaHost; }

// Large arrays are not packed: staging threads copy them, all as one transfer, or the copy engine does if
// they are pinned. The consumer's thread does not. Smaller ones are packed into one transfer on the
// consumer's thread, which is faster than handing them to another thread.
bool travels_alone(std::size_t bytes, MemoryKind host_end, const DeviceTuning& tuning) {
  if (host_end == MemoryKind::device) return true;  // a device whose memory is also the host's
  return bytes >=
         (host_end == MemoryKind::pageable ? tuning.alone_pageable_bytes : tuning.alone_pinned_bytes);
}

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

// True if it has ended: asking a failed one for its results throws.
template <typename Pending>
bool has_ended(const Pending& pending) {
  try {
    return pending.query();
  } catch (const std::exception&) {
    return true;
  }
}

// Nobody waits for its results any more.
template <typename Pending>
void wait_for_end(const Pending& pending) {
  try {
    pending.synchronize();
  } catch (const std::exception&) {
  }
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

// What comes next on `stream`, or on the host if there is none, comes after the transfers.
void order_behind(const std::vector<Transfer>& transfers, const std::optional<Stream>& stream) {
  for (const Transfer& transfer : transfers) {
    if (!stream) {
      wait_for_end(transfer);
      continue;
    }
    try {
      stream->wait(transfer);
    } catch (const std::exception&) {
      // A failed transfer no longer touches its destination.
    }
  }
}

TransferOptions options_for(const Device& device,
                            const std::optional<std::filesystem::path>& cache_directory) {
  TransferOptions options;
  if (cache_directory) {
    const auto file = LinkProfile::file_for(*cache_directory, device.info());
    std::string why;
    options.profile = LinkProfile::load(file, device.info(), &why);
    std::error_code error;
    if (!options.profile && std::filesystem::exists(file, error)) {
      log_warning("The link profile is ignored: " + why);
    }
  }
  return options;
}

}  // namespace

bool is_in(const FilledSlot* slot, const Leaf& leaf) {
  return slot != nullptr && slot->locked && leaf.bytes > 0 && slot->storage->contains(leaf.data);
}

bool PendingTransfers::is_done() const {
  return std::all_of(transfers.begin(), transfers.end(), has_ended<Transfer>) &&
         (!read_by_others || has_ended(*read_by_others));
}

void PendingTransfers::wait() const {
  for (const auto& transfer : transfers) wait_for_end(transfer);
  if (read_by_others) wait_for_end(*read_by_others);
}

Flight::~Flight() {
  if (engine_ && !pending_.empty()) engine_->keep(std::move(pending_));
}

bool Flight::sees(const FilledSlot& slot) const noexcept {
  return slot.storage.use_count() > (keeps(slot) ? 2 : 1);
}

nb::object Flight::land() {
  Torch* const torch = engine_->is_cuda() && !pending_.transfers.empty() ? Torch::get() : nullptr;
  return land_on(torch != nullptr ? torch->current_stream(engine_->index()) : nullptr);
}

nb::object Flight::land_on(StreamHandle current) {
  if (!result_.is_valid()) throw Closed("This batch was taken already.");
  engine_->reap();
  if (set_) set_->hand_out(current);
  if (pending_.transfers.empty()) {
    if (!pending_.empty()) engine_->keep(std::move(pending_));
    pending_ = {};
    return std::move(result_);
  }
  if (engine_->is_cuda() && Torch::get() != nullptr) {
    const Unlocked unlocked;
    const Stream stream = engine_->device().wrap_stream(current);
    for (const auto& transfer : pending_.transfers) stream.wait(transfer);
  } else if (!engine_->is_cuda()) {
    const Unlocked unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize();
    static_cast<PoolStorage&>(*pending_.storage).set_transfers({});
    pending_.transfers.clear();
  }
  // From here on the consumer's stream's order, or the storage itself, prevents early reuse.
  pending_.storage.reset();
  if (!pending_.sources.empty() || pending_.slot) engine_->keep(std::move(pending_));
  pending_ = {};
  return std::move(result_);
}

void Flight::release_sources() {
  {
    const Unlocked unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize_source();
  }
  pending_.sources.clear();
}

Engine::Engine(const std::string& spec, const std::optional<std::filesystem::path>& cache_directory)
    : device_(Device::open(spec)),
      cuda_(!device_.info().in_host_memory),
      generation_(fork_generation()),
      engine_(std::make_unique<TransferEngine>(device_, options_for(device_, cache_directory))),
      profile_(engine_.get()->profile()) {
  pool_.emplace(make_device_pool(device_));
  release_stream_ = std::make_shared<const Stream>(device_.create_stream());
}

std::shared_ptr<Engine> Engine::open(const std::string& spec,
                                     const std::optional<std::filesystem::path>& cache_directory) {
  const Unlocked unlocked;
  return {new Engine(spec, cache_directory), [](Engine* engine) {
            engine->close();
            // The pool and the device wait for the user's work, which may need the interpreter.
            const Unlocked without_lock;
            delete engine;
          }};
}

void Engine::refuse_fork() const {
  if (fork_generation() != generation_) {
    throw DeviceError(
        "PENSTOCK_FORKED", "fork", 0,
        "This process was forked after penstock had opened " + device_.info().spec +
            ", and a device cannot be used on both sides of a fork. Use penstock in the parent only "
            "(DataLoader workers yield host tensors), or start processes with the 'spawn' method.");
  }
}

void Engine::refuse_closed() const {
  refuse_fork();
  if (!engine_.is_open()) throw closed_error();
}

std::shared_ptr<TransferEngine> Engine::engine() const {
  refuse_fork();
  auto engine = engine_.get();
  if (!engine) throw closed_error();
  return engine;
}

Closed Engine::closed_error() const {
  return Closed("penstock's engine for " + device_.info().spec + " was closed.");
}

bool Engine::owns(const void* data) const { return fork_generation() == generation_ && device_.owns(data); }

std::size_t Engine::in_flight() {
  reap();
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

std::shared_ptr<Storage> Engine::allocate(std::size_t bytes, bool for_torch) {
  if (cuda_ && for_torch) return Torch::get()->allocate(index(), bytes);
  const Unlocked unlocked;
  return std::make_shared<PoolStorage>(device_, release_stream_,
                                       pool_->allocate_wait(std::max(bytes, kAlignment)));
}

std::shared_ptr<Storage> Engine::allocate_pinned(std::size_t bytes) {
  refuse_fork();
  const Unlocked unlocked;
  std::call_once(pinned_made_, [this] { pinned_.emplace(make_pinned_pool(device_)); });
  return std::make_shared<PinnedStorage>(pinned_->allocate(std::max(bytes, kAlignment)));
}

nb::object Engine::make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                        bool for_torch) const {
  const dlpack::Device device{cuda_ ? dlpack::kCuda : dlpack::kCpu, cuda_ ? index() : 0};
  const TensorView view = leaf.view(storage, at, device);
  if (for_torch) return Torch::get()->make(view);
  if (!cuda_) return NumPy::get()->make(view);
  return make_array(std::static_pointer_cast<DeviceStorage>(storage), view);
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

Flight Engine::send(nb::handle tree, nb::handle expand, bool pin, bool timed, const FilledSlot* slot,
                    FixedBatches* fixed) {
  Shipment shipment = load(tree, expand, pin, slot, fixed);
  if (shipment.nest.leaves().empty()) return finish(std::move(shipment), fixed);
  Flight& flight = shipment.flight;
  FixedSet* const set = flight.set_.get();
  const std::optional<Stream> after = stream_of(flight);
  {
    const Unlocked unlocked;
    if (set != nullptr) {
      // Nobody may have waited for the transfers of a batch that was dropped.
      order_behind(set->transfers, after);
      if (after && !set->arrays.empty() && set->stream != flight.stream_) {
        Event used = device_.create_event();
        used.record(device_.wrap_stream(set->stream));
        after->wait(used);
      }
    }
    try {
      enqueue(shipment, {.after = after ? &*after : nullptr, .timed = timed});
    } catch (...) {
      if (set != nullptr) set->transfers = flight.pending_.transfers;
      throw;
    }
  }
  return finish(std::move(shipment), fixed);
}

std::optional<Stream> Engine::stream_of(const Flight& flight) const {
  if (!cuda_ || Torch::get() == nullptr) return std::nullopt;
  return device_.wrap_stream(flight.stream_);
}

Shipment Engine::load(nb::handle tree, nb::handle expand, bool pin, const FilledSlot* slot,
                      FixedBatches* fixed) {
  reap();
  refuse_closed();
  Flight flight(shared_from_this());
  const auto count = [&flight](const Leaf& leaf) {
    if (flight.arrays_++ == 0 && leaf.ndim() > 0) flight.samples_ = static_cast<std::size_t>(leaf.shape()[0]);
  };
  Tree nest(tree, expand, [&](const Leaf& leaf) {
    if (!is_host(leaf)) {
      const bool is_there = cuda_ && leaf.device.index == index() && fixed == nullptr;
      return is_there ? Tree::Choice::leave : Tree::Choice::expand;
    }
    const bool may_stay = !cuda_ && fixed == nullptr;
    if (may_stay && slot != nullptr && slot->storage->contains(leaf.data)) {
      count(leaf);
      flight.bytes_left_ += leaf.bytes;
      return Tree::Choice::leave;
    }
    if (may_stay && owns(leaf.data)) return Tree::Choice::leave;
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
  fill_in(shipment, pin, slot, fixed);
  return shipment;
}

void Engine::fill_in(Shipment& shipment, bool pin, const FilledSlot* slot, FixedBatches* fixed) {
  Flight& flight = shipment.flight;
  std::vector<Leaf>& leaves = shipment.nest.leaves();
  Torch* const torch = cuda_ ? Torch::get() : nullptr;
  if (pin && torch != nullptr) flight.pin_seconds_ = pin_large(leaves, *torch);
  const std::shared_ptr<FixedSet> set = fixed == nullptr ? nullptr : fixed->next(leaves);
  flight.set_ = set;
  Groups groups = group(leaves, slot, true);
  Layout layout = set ? lay_out_in_order(leaves) : lay_out(leaves, groups);
  if (set && !travels_as_one(groups, leaves, layout)) groups = group(leaves, slot, false);
  for (const Leaf& leaf : leaves) flight.bytes_ += leaf.bytes;
  std::shared_ptr<Storage> storage = set ? set->storage : nullptr;
  if (!storage) storage = allocate(layout.bytes, torch != nullptr);
  if (set) set->storage = storage;
  flight.pending_.storage = storage;
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

Flight Engine::finish(Shipment shipment, FixedBatches* fixed) {
  Flight& flight = shipment.flight;
  const std::vector<Leaf>& leaves = shipment.nest.leaves();
  std::vector<nb::object> results;
  if (leaves.empty()) {
    flight.result_ = shipment.nest.build(results);
    return std::move(flight);
  }
  const std::shared_ptr<Storage>& storage = flight.pending_.storage;
  FixedSet* const set = flight.set_.get();
  const bool cuda_torch = cuda_ && Torch::get() != nullptr;
  if (!cuda_torch) static_cast<PoolStorage&>(*storage).set_transfers(flight.pending_.transfers);
  if (set != nullptr) {
    set->transfers = flight.pending_.transfers;
    if (set->arrays.empty()) {
      const OutsideInferenceMode mode;
      std::vector<FixedArray> arrays;
      for (nb::object& array : make_all(leaves, storage, shipment.destinations())) {
        arrays.emplace_back(std::move(array), fixed->mark());
      }
      set->arrays = std::move(arrays);
    }
    for (const FixedArray& array : set->arrays) results.push_back(array.object());
  } else {
    results = make_all(leaves, storage, shipment.destinations());
  }
  flight.result_ = shipment.nest.build(results);
  return std::move(flight);
}

Engine::Layout Engine::lay_out(const std::vector<Leaf>& leaves, const Groups& groups) {
  Layout layout{std::vector<std::size_t>(leaves.size()), align_up(groups.slot.size(), kAlignment)};
  // What comes out of a slot lies as it lay there. Packed arrays follow, side by side.
  for (std::size_t i : groups.together) {
    layout.offsets[i] = static_cast<std::size_t>(leaves[i].data - groups.slot.data());
  }
  for (const auto* members : {&groups.packed, &groups.alone}) {
    for (std::size_t i : *members) layout.append(i, leaves[i].bytes);
  }
  return layout;
}

Engine::Layout Engine::lay_out_in_order(const std::vector<Leaf>& leaves) {
  Layout layout{std::vector<std::size_t>(leaves.size())};
  for (std::size_t i = 0; i < leaves.size(); ++i) layout.append(i, leaves[i].bytes);
  return layout;
}

void Engine::Layout::append(std::size_t leaf, std::size_t count) {
  offsets[leaf] = bytes;
  bytes += align_up(count, kAlignment);
}

bool Engine::travels_as_one(const Groups& groups, const std::vector<Leaf>& leaves, const Layout& layout) {
  if (groups.together.empty()) return true;
  const std::size_t first = groups.together.front();
  const std::size_t last = groups.together.back();
  // Others in between would be overwritten.
  if (last - first + 1 != groups.together.size()) return false;
  return std::ranges::all_of(groups.together, [&](std::size_t i) {
    return leaves[i].data - groups.slot.data() ==
           static_cast<std::ptrdiff_t>(layout.offsets[i] - layout.offsets[first]);
  });
}

Groups Engine::group(const std::vector<Leaf>& leaves, const FilledSlot* slot, bool as_one) const {
  Groups groups;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (as_one && is_in(slot, leaf)) {
      groups.together.push_back(i);
      begin = begin == nullptr ? leaf.data : std::min(begin, leaf.data);
      end = std::max(end, leaf.data + leaf.bytes);
    } else {
      const MemoryKind kind = is_pinned(leaf) ? MemoryKind::pinned : MemoryKind::pageable;
      (travels_alone(leaf.bytes, kind, info().tuning) ? groups.alone : groups.packed).push_back(i);
    }
  }
  if (begin != nullptr) {
    // From a place that is aligned, so that what comes out of the slot is.
    begin -= static_cast<std::size_t>(begin - slot->storage->data()) % kAlignment;
    groups.slot = {begin, end};
  }
  return groups;
}

std::vector<std::byte*> Shipment::destinations() const {
  std::vector<std::byte*> places;
  for (const std::size_t offset : offsets) places.push_back(flight.pending_.storage->data() + offset);
  return places;
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

void Engine::keep(PendingTransfers pending) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(pending));
}

void Engine::reap() {
  // Dropping these may run Python code, so they are dropped without the lock.
  std::vector<PendingTransfers> finished;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < pending_.size();) {
      if (pending_[i].is_done()) {
        finished.push_back(std::move(pending_[i]));
        pending_[i] = std::move(pending_.back());
        pending_.pop_back();
      } else {
        ++i;
      }
    }
  }
}

void Engine::close() {
  // In a forked process, the threads and transfers belong to the parent.
  if (fork_generation() != generation_) return;
  std::vector<PendingTransfers> pending;
  {
    const std::lock_guard lock(mutex_);
    pending.swap(pending_);
  }
  const Unlocked unlocked;
  for (const auto& one : pending) one.wait();
  engine_.close();
}

}  // namespace penstock::python
