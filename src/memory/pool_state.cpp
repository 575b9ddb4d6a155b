#include "memory/pool_state.hpp"

#include "core/shared/wait_quietly.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <limits>
#include <new>
#include <set>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kEverything = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMostAlignment = 4096;

std::size_t default_budget(const Device& device, MemoryKind kind) {
  if (kind == MemoryKind::device) return device.memory().free / 2;
  return host_topology().memory_bytes / 2;
}

PoolOptions checked(PoolOptions options, const Device& device, MemoryKind kind) {
  if (!std::has_single_bit(options.alignment) || options.alignment < 64 ||
      options.alignment > kMostAlignment) {
    throw InvalidArgument(fmt::format("a pool's alignment is a power of two from 64 to {} bytes, not {}",
                                      kMostAlignment, options.alignment));
  }
  if (options.budget_bytes == 0) options.budget_bytes = default_budget(device, kind);
  return options;
}

struct PinnedPools {
  std::mutex mutex;  // taken before a pool's
  std::set<PoolState*> all;
};

/// The pinned pools of this process. A forked child begins with none, and with a lock that nobody holds.
/// Never destroyed, and made at the first call: pools may be older and younger than statics.
PinnedPools& pinned_pools() {
  alignas(PinnedPools) static std::byte memory[sizeof(PinnedPools)];
  static PinnedPools* const pools = [] {
    pthread_atfork(nullptr, nullptr, [] { new (memory) PinnedPools; });
    return new (memory) PinnedPools;
  }();
  return *pools;
}

}  // namespace

std::size_t left_to_pin(std::size_t held, std::size_t memory, std::size_t available) noexcept {
  return std::min(memory / 2 - std::min(held, memory / 2), available);
}

PinnedMemory PoolState::pinned_memory(std::size_t arriving) {
  PinnedMemory now;
  const std::size_t available = free_host_memory();
  const std::lock_guard all(pinned_pools().mutex);
  for (const PoolState* pool : pinned_pools().all) {
    const Lock lock(pool->mutex_);
    const std::size_t has = pool->statistics_.reserved_bytes;
    now.held_bytes += has + pool->arriving_bytes_;
    now.idle_bytes += pool->arena_.idle_bytes();
    if (has > 0)
      now.holders +=
          fmt::format("{}{} has {}", now.holders.empty() ? "" : ", ", pool->name_, format_bytes(has));
  }
  now.held_bytes -= arriving;
  now.free_bytes = left_to_pin(now.held_bytes, host_topology().memory_bytes, available);
  return now;
}

std::shared_ptr<PoolState> PoolState::create(Device device, std::shared_ptr<MemoryResource> upstream,
                                             PoolOptions options, std::string name) {
  if (upstream == nullptr) throw InvalidArgument("a pool needs an upstream resource; this one is null");
  options = checked(options, device, upstream->kind());
  return {new PoolState(std::move(device), std::move(upstream), options, std::move(name)),
          [](PoolState* state) {
            if (!state->forked()) delete state;
          }};
}

PoolState::PoolState(Device device, std::shared_ptr<MemoryResource> upstream, PoolOptions options,
                     std::string name)
    : device_(std::move(device)),
      upstream_(std::move(upstream)),
      options_(std::move(options)),
      name_(std::move(name)) {
  statistics_.budget_bytes = options_.budget_bytes;
  if (kind() != MemoryKind::pinned) return;
  const std::lock_guard lock(pinned_pools().mutex);
  pinned_pools().all.insert(this);
}

// Memory whose last work cannot be waited for is leaked: the device might still write to it after it was
// unmapped or given to somebody else.
PoolState::~PoolState() {
  {
    const std::lock_guard lock(pinned_pools().mutex);
    pinned_pools().all.erase(this);
  }
  for (Release& release : pending_) {
    const bool done = wait_quietly([&] { release.event.synchronize(); });
    if (done) {
      arena_.give(*release.block);
    } else {
      arena_.set_use(*release.block, BlockUse::lost);
    }
  }
  return_idle(kEverything);
}

void PoolState::check_fork(const char* call) const {
  if (!forked()) return;
  throw DeviceError("PENSTOCK_FORKED", call, 0,
                    fmt::format("{} belongs to the parent of this process; open a device and make a pool in "
                                "the child, or start workers by 'spawn' instead of 'fork'.",
                                name_));
}

std::size_t PoolState::rounded(std::size_t bytes) const {
  if (bytes > kEverything / 2) throw refusal(bytes);
  return align_up(bytes, options_.alignment);
}

OutOfMemory PoolState::refusal(std::size_t bytes) const {
  const Lock lock(mutex_);
  const std::size_t used = statistics_.used_bytes + statistics_.pending_bytes;
  const std::size_t free = options_.budget_bytes - used;
  std::string advice = fmt::format("Raise the pool's budget (now {}), or release buffers.",
                                   format_bytes(options_.budget_bytes));
  if (statistics_.pending_bytes > 0) {
    advice += fmt::format(" {} become free once device work is done: wait for it, and ask again.",
                          format_bytes(statistics_.pending_bytes));
  }
  if (free >= bytes) {
    advice += fmt::format(" The largest free block has {}.", format_bytes(arena_.largest_free()));
  }
  return OutOfMemory(name_, bytes, used, free, advice);
}

std::optional<Buffer> PoolState::take(std::size_t need, std::size_t bytes) {
  const Arena::Handle block = arena_.take(need);
  if (block == arena_.end()) return std::nullopt;
  block->second.requested = bytes;
  statistics_.used_bytes += need;
  statistics_.requested_bytes += bytes;
  statistics_.peak_used_bytes = std::max(statistics_.peak_used_bytes, statistics_.used_bytes);
  ++statistics_.allocations;
  return Buffer(shared_from_this(), block->first, bytes, upstream_->kind());
}

std::optional<Buffer> PoolState::take_or_reclaim(std::size_t need, std::size_t bytes) {
  reclaim_oldest();
  if (auto buffer = take(need, bytes)) return buffer;
  reclaim_all();
  return take(need, bytes);
}

Buffer PoolState::allocate(std::size_t bytes) {
  check_fork("an allocation");
  if (bytes == 0) return {};
  const std::size_t need = rounded(bytes);
  {
    const Lock lock(mutex_);
    if (auto buffer = take_or_reclaim(need, bytes)) return std::move(*buffer);
  }
  std::unique_lock growing(growing_, std::defer_lock);
  if (need <= options_.segment_bytes) growing.lock();
  try {
    return grow(need, bytes);
  } catch (const OutOfMemory&) {
    const Lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    throw;
  }
}

Buffer PoolState::allocate_wait(std::size_t bytes) {
  check_fork("an allocation");
  const std::size_t need = rounded(bytes);
  for (;;) {
    std::uint64_t seen = 0;
    {
      const Lock lock(mutex_);
      seen = frees_;
    }
    try {
      return allocate(bytes);
    } catch (const OutOfMemory&) {
      Lock lock(mutex_);
      if (frees_ != seen) continue;
      if (!pending_could_serve(need)) throw;
      wait_for_change(lock);
    }
  }
}

bool PoolState::pending_could_serve(std::size_t need) const noexcept {
  return arena_.pending_could_free(need, need > room() ? need - room() : 0);
}

void PoolState::reserve(std::size_t bytes) {
  check_fork("a reservation");
  if (bytes == 0) return;
  const std::size_t need = rounded(bytes);
  const std::lock_guard growing(growing_);
  {
    const Lock lock(mutex_);
    reclaim_all();
    if (arena_.largest_free() >= need) return;
  }
  const Segment segment = new_segment(need, bytes);
  const Lock lock(mutex_);
  admit(segment);
}

PoolStatistics PoolState::statistics() const {
  check_fork("counting a pool");
  const Lock lock(mutex_);
  return statistics_;
}

Arena::Handle PoolState::let_go(std::byte* data) noexcept {
  const Arena::Handle block = arena_.find(data);
  statistics_.used_bytes -= block->second.bytes();
  statistics_.requested_bytes -= block->second.requested;
  return block;
}

void PoolState::release(std::byte* data) noexcept {
  if (forked()) return;
  const Lock lock(mutex_);
  give(let_go(data));
}

PoolState::Releases PoolState::unused_release(const Stream& stream) {
  Releases one;
  {
    const Lock lock(mutex_);
    const auto match = std::find_if(spare_.begin(), spare_.end(), [&](const Release& release) {
      return release.event.same_device(stream);
    });
    if (match != spare_.end()) one.splice(one.end(), spare_, match);
  }
  if (one.empty()) one.push_back({stream.create_event(), 0, std::nullopt});
  return one;
}

void PoolState::release_after(std::byte* data, const Stream& stream) {
  if (forked()) return;
  Releases one;
  try {
    one = unused_release(stream);
    one.front().event.record(stream);
  } catch (...) {
    const bool done = wait_quietly([&] { stream.synchronize(); });
    const Lock lock(mutex_);
    spare_.splice(spare_.end(), one);
    const Arena::Handle block = let_go(data);
    if (done) {
      give(block);
    } else {
      statistics_.pending_bytes += block->second.bytes();
      arena_.set_use(block, BlockUse::lost);
    }
    throw;
  }
  const Lock lock(mutex_);
  const Arena::Handle block = let_go(data);
  statistics_.pending_bytes += block->second.bytes();
  arena_.set_use(block, BlockUse::pending);
  one.front().block = block;
  one.front().ticket = next_ticket_++;
  pending_.splice(pending_.end(), one);
}

void PoolState::give(Arena::Handle block) noexcept {
  arena_.give(block);
  ++frees_;
  if (waiters_ > 0) changed_.notify_all();
}

bool PoolState::reclaim_if_done(Releases::iterator release) {
  if (!release->event.query()) return false;
  statistics_.pending_bytes -= (*release->block)->second.bytes();
  give(*release->block);
  release->block.reset();
  spare_.splice(spare_.begin(), pending_, release);
  return true;
}

// An allocation queries releases up to the first unfinished one. The others are queried if memory is short.
void PoolState::reclaim_oldest() noexcept {
  try {
    while (!pending_.empty() && reclaim_if_done(pending_.begin())) {
    }
  } catch (...) {
  }
}

// If a query fails, its release stays pending. An allocation that is refused for it throws the failure.
void PoolState::reclaim_all() {
  failure_ = nullptr;
  for (auto release = pending_.begin(); release != pending_.end();) {
    const auto now = release++;
    try {
      reclaim_if_done(now);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
}

// Releases of several streams end in any order, and other threads release buffers, so this waits for any of
// them. The condition variable tells of buffers; events are looked at in short intervals.
void PoolState::wait_for_change(Lock& lock) {
  using std::chrono::microseconds;
  microseconds pause{10};
  const std::uint64_t seen = frees_;
  ++waiters_;
  while (frees_ == seen && !pending_.empty()) {
    changed_.wait_for(lock, pause);
    pause = std::min(pause * 2, microseconds{200});
    reclaim_all();
    if (failure_ && frees_ == seen) break;
  }
  --waiters_;
  if (failure_ && frees_ == seen) std::rethrow_exception(failure_);
}

Buffer PoolState::grow(std::size_t need, std::size_t bytes) {
  {
    const Lock lock(mutex_);
    if (auto buffer = take_or_reclaim(need, bytes)) return std::move(*buffer);
  }
  const Segment segment = new_segment(need, bytes);
  const Lock lock(mutex_);
  admit(segment);
  return *take(need, bytes);
}

void PoolState::admit(Segment segment) {
  arriving_bytes_ -= segment.bytes;
  try {
    arena_.add(segment);
  } catch (...) {
    upstream_->deallocate(segment.data, segment.bytes, options_.alignment);
    throw;
  }
  statistics_.reserved_bytes += segment.bytes;
}

Segment PoolState::new_segment(std::size_t need, std::size_t bytes) {
  std::size_t ask = make_room(need, bytes);
  const auto ask_for = [&](std::size_t less) {
    const Lock lock(mutex_);
    arriving_bytes_ -= ask - less;
    ask = less;
  };
  try {
    try {
      return take_from_upstream(ask);
    } catch (const OutOfMemory&) {
      if (return_all_idle() == 0 && ask == need) throw;
    }
    ask_for(need);
    return take_from_upstream(need);
  } catch (...) {
    ask_for(0);
    throw;
  }
}

std::size_t PoolState::make_room(std::size_t need, std::size_t bytes) {
  for (;;) {  // again if another thread has taken what went back
    std::size_t missing = 0;
    {
      const Lock lock(mutex_);
      if (need <= room()) {
        const std::size_t usual = align_up(options_.segment_bytes, options_.alignment);
        const std::size_t ask = std::max(need, std::min(usual, room() & ~(options_.alignment - 1)));
        arriving_bytes_ += ask;
        return ask;
      }
      missing = need - room();
      if (arena_.idle_bytes() < missing) missing = 0;
    }
    if (missing == 0 || return_idle(missing) < missing) throw refusal(bytes);
  }
}

Segment PoolState::take_from_upstream(std::size_t bytes) {
  if (kind() == MemoryKind::pinned) {
    const PinnedMemory now = pinned_memory(bytes);
    if (bytes > now.free_bytes) {
      throw OutOfMemory(
          "the process's pinned memory", bytes, now.held_bytes, now.free_bytes,
          fmt::format(
              "It takes at most half of the memory of the machine or container, and what is free there. "
              "Free memory, raise the container's limit, or ask for less. {}",
              now.holders));
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  auto* data = static_cast<std::byte*>(upstream_->allocate(bytes, options_.alignment));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const Lock lock(mutex_);
  ++statistics_.upstream_allocations;
  statistics_.upstream_seconds += taken.count();
  return {data, bytes};
}

std::size_t PoolState::return_idle(std::size_t bytes) noexcept {
  const auto remove_one = [&] {
    const Lock lock(mutex_);
    const std::optional<Segment> idle = arena_.remove_idle();
    if (idle) statistics_.reserved_bytes -= idle->bytes;
    return idle;
  };
  std::size_t total = 0;
  while (total < bytes) {
    const auto idle = remove_one();
    if (!idle) break;
    upstream_->deallocate(idle->data, idle->bytes, options_.alignment);
    total += idle->bytes;
  }
  return total;
}

std::size_t PoolState::return_all_idle() noexcept {
  std::size_t total = return_idle(kEverything);
  if (kind() != MemoryKind::pinned) return total;
  const std::lock_guard lock(pinned_pools().mutex);
  for (PoolState* pool : pinned_pools().all) total += pool->return_idle(kEverything);
  return total;
}

}  // namespace penstock
