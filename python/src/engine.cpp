#include "engine.hpp"

#include "arrays.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/log.hpp>

#include <algorithm>
#include <utility>

namespace penstock::python {
namespace {

// Tensors smaller than this are not faster with PyTorch's copy.
constexpr std::size_t kPinnedByTorch = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 256;

bool is_pinned(const Leaf& leaf) { return leaf.device.type == dlpack::kCudaHost; }

// Large arrays travel alone: staging threads copy them, or the copy engine if they are pinned, and the
// consumer's thread does not. Smaller ones are packed into one transfer on the consumer's thread, which is
// faster than handing them to another thread.
bool travels_alone(const Leaf& leaf, const DeviceTuning& tuning) {
  return leaf.bytes >= (is_pinned(leaf) ? tuning.alone_pinned_bytes : tuning.alone_pageable_bytes);
}

bool is_host(const Leaf& leaf) { return leaf.device.type == dlpack::kCpu || is_pinned(leaf); }

bool is_done(const Transfer& transfer) {
  try {
    return transfer.query();
  } catch (const std::exception&) {
    return true;  // it has stopped; asking for its results throws
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

Flight::~Flight() {
  if (engine_ && !pending_.transfers.empty()) engine_->keep(std::move(pending_));
}

nb::object Flight::land() {
  Torch* const torch = engine_->is_cuda() && !pending_.transfers.empty() ? Torch::get() : nullptr;
  return land_on(torch != nullptr ? torch->current_stream(engine_->index()) : nullptr);
}

nb::object Flight::land_on(StreamHandle current) {
  if (!result_.is_valid()) throw Closed("This batch was taken already.");
  engine_->reap();
  if (pending_.transfers.empty()) return std::move(result_);
  if (engine_->is_cuda() && Torch::get() != nullptr) {
    const nb::gil_scoped_release unlocked;
    const Stream stream = engine_->device().wrap_stream(current);
    for (const auto& transfer : pending_.transfers) stream.wait(transfer);
  } else if (!engine_->is_cuda()) {
    const nb::gil_scoped_release unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize();
    static_cast<PoolStorage&>(*pending_.storage).set_transfers({});
    pending_.transfers.clear();
  }
  // From here on the consumer's stream's order, or the storage itself, prevents early reuse.
  pending_.storage.reset();
  if (!pending_.sources.empty()) engine_->keep(std::move(pending_));
  pending_ = {};
  return std::move(result_);
}

void Flight::release_sources() {
  {
    const nb::gil_scoped_release unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize_source();
  }
  pending_.sources.clear();
}

Engine::Engine(const std::string& spec, const std::optional<std::filesystem::path>& cache_directory)
    : device_(Device::open(spec)), cuda_(!device_.info().in_host_memory), generation_(fork_generation()) {
  engine_ = std::make_unique<TransferEngine>(device_, options_for(device_, cache_directory));
  pool_.emplace(make_device_pool(device_));
  release_stream_ = std::make_shared<const Stream>(device_.create_stream());
}

std::shared_ptr<Engine> Engine::open(const std::string& spec,
                                     const std::optional<std::filesystem::path>& cache_directory) {
  const nb::gil_scoped_release unlocked;
  return {new Engine(spec, cache_directory), [](Engine* engine) {
            engine->close();
            // The pool and the device wait for the user's work, which may need the interpreter.
            const nb::gil_scoped_release without_lock;
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

TransferEngine& Engine::engine() const {
  refuse_fork();
  if (!engine_) throw Closed("penstock's engine for " + device_.info().spec + " was closed.");
  return *engine_;
}

bool Engine::owns(const void* data) const {
  return fork_generation() == generation_ && device_.kind_of(data) == MemoryKind::device;
}

std::size_t Engine::in_flight() {
  reap();
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

std::shared_ptr<Storage> Engine::allocate(std::size_t bytes, bool for_torch) {
  if (cuda_ && for_torch) return Torch::get()->allocate(index(), bytes);
  const nb::gil_scoped_release unlocked;
  return std::make_shared<PoolStorage>(device_, release_stream_,
                                       pool_->allocate_wait(std::max(bytes, kAlignment)));
}

nb::object Engine::make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                        bool for_torch) const {
  const dlpack::Device device{cuda_ ? dlpack::kCuda : dlpack::kCpu, cuda_ ? index() : 0};
  const TensorView view = leaf.view(storage, at, device);
  if (for_torch) return Torch::get()->make(view);
  if (!cuda_) return NumPy::get()->make(view);
  return make_array(std::static_pointer_cast<DeviceStorage>(storage), view);
}

Flight Engine::send(nb::handle tree, nb::handle expand, bool pin, bool timed) {
  reap();
  (void)engine();
  Tree nest(tree, expand, [this](const Leaf& leaf) {
    if (is_host(leaf)) return cuda_ || !owns(leaf.data) ? Tree::Choice::leaf : Tree::Choice::leave;
    return cuda_ && leaf.device.index == index() ? Tree::Choice::leave : Tree::Choice::expand;
  });
  std::vector<Leaf>& leaves = nest.leaves();
  Flight flight(shared_from_this());
  flight.arrays_ = leaves.size();
  if (!leaves.empty() && leaves.front().ndim() > 0) {
    flight.samples_ = static_cast<std::size_t>(leaves.front().shape()[0]);
  }
  std::vector<nb::object> results;
  if (leaves.empty()) {
    flight.result_ = nest.build(results);
    return flight;
  }
  Torch* torch = Torch::get();
  const bool cuda_torch = cuda_ && torch != nullptr;
  if (pin && cuda_torch) {
    for (Leaf& leaf : leaves) {
      if (leaf.bytes >= kPinnedByTorch && !is_pinned(leaf)) torch->pin(leaf);
    }
  }
  // Packed arrays come first, side by side.
  std::vector<std::size_t> packed;
  std::vector<std::size_t> alone;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    (travels_alone(leaves[i], info().tuning) ? alone : packed).push_back(i);
  }
  std::vector<std::byte*> destinations(leaves.size());
  std::vector<std::size_t> offsets(leaves.size());
  std::size_t end = 0;
  for (const auto* group : {&packed, &alone}) {
    for (std::size_t i : *group) {
      offsets[i] = end;
      end += align_up(leaves[i].bytes, kAlignment);
      flight.bytes_ += leaves[i].bytes;
    }
  }
  std::shared_ptr<Storage> storage = allocate(end, cuda_torch);
  for (std::size_t i = 0; i < leaves.size(); ++i) destinations[i] = storage->data() + offsets[i];
  flight.pending_.storage = storage;
  for (std::size_t i : alone) flight.pending_.sources.push_back(leaves[i].source);
  if (cuda_torch) flight.stream_ = torch->current_stream(index());
  {
    const nb::gil_scoped_release unlocked;
    std::optional<Stream> after;
    if (cuda_torch) after.emplace(device_.wrap_stream(flight.stream_));
    enqueue(flight, leaves, packed, alone, destinations,
            {.after = after ? &*after : nullptr, .timed = timed});
  }
  if (!cuda_torch) static_cast<PoolStorage&>(*storage).set_transfers(flight.pending_.transfers);
  results.reserve(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const bool for_torch = cuda_torch || leaves[i].framework == Framework::torch;
    results.push_back(make(leaves[i], storage, destinations[i], for_torch));
  }
  flight.result_ = nest.build(results);
  return flight;
}

void Engine::enqueue(Flight& flight, const std::vector<Leaf>& leaves, const std::vector<std::size_t>& packed,
                     const std::vector<std::size_t>& alone, const std::vector<std::byte*>& destinations,
                     const CopyOptions& common) {
  auto& transfers = flight.pending_.transfers;
  transfers.reserve(alone.size() + 1);
  CopyOptions options = common;
  options.destination_kind = MemoryKind::device;
  if (!packed.empty()) {
    std::vector<TransferPiece> pieces;
    pieces.reserve(packed.size());
    for (std::size_t i : packed) pieces.push_back({leaves[i].data, destinations[i], leaves[i].bytes});
    options.source_kind = MemoryKind::pageable;
    transfers.push_back(engine().copy_pieces(pieces, CopyDirection::h2d, options));
  }
  for (std::size_t i : alone) {
    options.source_kind = is_pinned(leaves[i]) ? std::optional(MemoryKind::pinned) : std::nullopt;
    transfers.push_back(engine().copy(destinations[i], leaves[i].data, leaves[i].bytes, options));
  }
}

std::vector<std::shared_ptr<Storage>> Engine::fetch(const std::vector<const Leaf*>& leaves) {
  reap();
  std::vector<std::shared_ptr<Storage>> storages;
  std::vector<TransferPiece> pieces;
  std::vector<const Leaf*> alone;
  std::vector<Transfer> transfers;
  Torch* torch = cuda_ ? Torch::get() : nullptr;
  const StreamHandle current = torch == nullptr ? nullptr : torch->current_stream(index());
  std::vector<std::shared_ptr<DeviceStorage>> written_by_us;
  for (const Leaf* leaf : leaves) {
    if (leaf->framework != Framework::penstock) continue;
    written_by_us.push_back(nb::cast<const DeviceArray&>(leaf->source).storage);
  }
  const nb::gil_scoped_release unlocked;
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
  options.destination_kind = MemoryKind::pageable;
  options.after = &intake;
  for (const Leaf* leaf : leaves) {
    storages.push_back(std::make_shared<HostStorage>(leaf->bytes));
    if (travels_alone(*leaf, info().tuning)) {
      transfers.push_back(engine().copy(storages.back()->data(), leaf->data, leaf->bytes, options));
    } else {
      pieces.push_back({leaf->data, storages.back()->data(), leaf->bytes});
    }
  }
  if (!pieces.empty()) transfers.push_back(engine().copy_pieces(pieces, CopyDirection::d2h, options));
  for (const auto& transfer : transfers) transfer.synchronize();
  return storages;
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
      if (std::all_of(pending_[i].transfers.begin(), pending_[i].transfers.end(), is_done)) {
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
  std::vector<PendingTransfers> pending;
  std::unique_ptr<TransferEngine> engine;
  {
    const std::lock_guard lock(mutex_);
    pending.swap(pending_);
    engine.swap(engine_);
  }
  if (fork_generation() != generation_) {
    // The threads and transfers belong to the parent.
    return;
  }
  {
    const nb::gil_scoped_release unlocked;
    for (const auto& one : pending) {
      for (const auto& transfer : one.transfers) {
        try {
          transfer.synchronize();
        } catch (const std::exception&) {
          // Nobody waits for it any more.
        }
      }
    }
    engine.reset();
  }
}

}  // namespace penstock::python
