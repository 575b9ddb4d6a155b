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

// Less than this is copied as quickly by ours.
constexpr std::size_t kPinnedByTorch = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 256;

bool is_pinned(const Leaf& leaf) { return leaf.device.type == dlpack::kCudaHost; }

// Large arrays travel on their own, so that the consumer's thread does not copy them: staging threads do, or
// the copy engine itself if they are pinned. Smaller ones are packed into one transfer, on the consumer's
// thread, which is quicker than to hand them to another.
bool travels_alone(const Leaf& leaf, const DeviceTuning& tuning) {
  return leaf.bytes >= (is_pinned(leaf) ? tuning.alone_pinned_bytes : tuning.alone_pageable_bytes);
}

bool is_host(const Leaf& leaf) { return leaf.device.type == dlpack::kCpu || is_pinned(leaf); }

bool is_done(const Transfer& transfer) {
  try {
    return transfer.query();
  } catch (const std::exception&) {
    return true;  // it has stopped; whoever asks for its results is told
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
  if (engine_ && !remains_.transfers.empty()) engine_->keep(std::move(remains_));
}

nb::object Flight::land() {
  Torch* const torch = engine_->is_cuda() && !remains_.transfers.empty() ? Torch::get() : nullptr;
  return land_on(torch != nullptr ? torch->current_stream(engine_->index()) : nullptr);
}

nb::object Flight::land_on(StreamHandle current) {
  if (!result_.is_valid()) throw Closed("This batch was taken already.");
  engine_->reap();
  if (remains_.transfers.empty()) return std::move(result_);
  if (engine_->is_cuda() && Torch::get() != nullptr) {
    const nb::gil_scoped_release unlocked;
    const Stream stream = engine_->device().wrap_stream(current);
    for (const auto& transfer : remains_.transfers) stream.wait(transfer);
  } else if (!engine_->is_cuda()) {
    const nb::gil_scoped_release unlocked;
    for (const auto& transfer : remains_.transfers) transfer.synchronize();
    static_cast<PoolStorage&>(*remains_.storage).set_transfers({});
    remains_.transfers.clear();
  }
  // From here on the order of the consumer's stream, or the storage itself, keeps the memory from early
  // reuse.
  remains_.storage.reset();
  if (!remains_.sources.empty()) engine_->keep(std::move(remains_));
  remains_ = {};
  return std::move(result_);
}

void Flight::release_sources() {
  {
    const nb::gil_scoped_release unlocked;
    for (const auto& transfer : remains_.transfers) transfer.synchronize_source();
  }
  remains_.sources.clear();
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
            // The pool and the device wait for work of the user's, which may need the interpreter.
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
  return remains_.size();
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
  // Packed arrays lie first, side by side.
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
  flight.remains_.storage = storage;
  for (std::size_t i : alone) flight.remains_.sources.push_back(leaves[i].source);
  if (cuda_torch) flight.stream_ = torch->current_stream(index());
  {
    const nb::gil_scoped_release unlocked;
    std::optional<Stream> after;
    if (cuda_torch) after.emplace(device_.wrap_stream(flight.stream_));
    enqueue(flight, leaves, packed, alone, destinations,
            {.after = after ? &*after : nullptr, .timed = timed});
  }
  if (!cuda_torch) static_cast<PoolStorage&>(*storage).set_transfers(flight.remains_.transfers);
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
  auto& transfers = flight.remains_.transfers;
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
  // What wrote the tensors is queued on PyTorch's current stream; an Array knows its own transfers.
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

void Engine::keep(Remains remains) {
  const std::lock_guard lock(mutex_);
  remains_.push_back(std::move(remains));
}

void Engine::reap() {
  // What is dropped may run Python code: not under the lock.
  std::vector<Remains> finished;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < remains_.size();) {
      if (std::all_of(remains_[i].transfers.begin(), remains_[i].transfers.end(), is_done)) {
        finished.push_back(std::move(remains_[i]));
        remains_[i] = std::move(remains_.back());
        remains_.pop_back();
      } else {
        ++i;
      }
    }
  }
}

void Engine::close() {
  std::vector<Remains> remains;
  std::unique_ptr<TransferEngine> engine;
  {
    const std::lock_guard lock(mutex_);
    remains.swap(remains_);
    engine.swap(engine_);
  }
  if (fork_generation() != generation_) {
    // The parent's threads and transfers are not this process's.
    return;
  }
  {
    const nb::gil_scoped_release unlocked;
    for (const auto& one : remains) {
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
