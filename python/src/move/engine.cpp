#include "move/engine.hpp"

#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/log.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace penstock::python {
namespace {

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

std::shared_ptr<Storage> Engine::allocate_on_host(std::size_t bytes, std::size_t alignment) const {
  const Unlocked unlocked;
  return std::make_shared<HostStorage>(bytes, *device_.host_workers(), alignment);
}

std::shared_ptr<Storage> Engine::allocate_pinned(std::size_t bytes) {
  refuse_fork();
  const Unlocked unlocked;
  return std::make_shared<PinnedStorage>(pinned_pool().allocate(std::max(bytes, kAlignment)), returned_);
}

PinnedMemory Engine::pinned_memory() {
  refuse_fork();
  const Unlocked unlocked;
  static_cast<void>(pinned_pool());
  return penstock::pinned_memory();
}

Pool& Engine::pinned_pool() {
  std::call_once(pinned_made_, [this] {
    pinned_.emplace(make_pinned_pool(device_, {.purpose = "parked state and results"}));
  });
  std::vector<Buffer> idle;
  {
    const std::lock_guard lock(returned_->mutex);
    idle.swap(returned_->buffers);
  }
  if (idle.empty()) return *pinned_;
  try {
    device_.deallocate(device_.allocate(kAlignment));  // waits for the work queued on the device
  } catch (const std::exception&) {
    const std::lock_guard lock(returned_->mutex);
    std::move(idle.begin(), idle.end(), std::back_inserter(returned_->buffers));
    idle.clear();
  }
  return *pinned_;
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
