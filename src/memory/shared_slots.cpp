#include "memory/host_pages.hpp"
#include "memory/slot_locker.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/shared_pages.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/memory/shared_slots.hpp>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

struct SharedSlotsLayout {
  std::size_t begin = 0;   ///< of the first slot
  std::size_t stride = 0;  ///< from slot to slot
  std::size_t bytes = 0;   ///< of the whole file
};

namespace {

/// What both sides know of a slot, in the shared memory. A cache line each: writers do not disturb each
/// other.
struct alignas(64) SlotControl {
  std::uint64_t claimed = 0;  ///< written by the writer while it is 0, and by the reader while it is 1
  std::uint64_t allowed = 0;  ///< bytes
};
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

SharedSlotsLayout layout_of(std::size_t slots, std::size_t most_bytes) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;
  if (slots == 0 || most_bytes == 0)
    throw InvalidArgument("shared slots: there must be a slot, and a byte in it");
  if (most_bytes > kMost || slots > (std::size_t{1} << 20)) {
    throw InvalidArgument(fmt::format("shared slots: {} slots of {} are more than can be addressed", slots,
                                      format_bytes(most_bytes)));
  }
  SharedSlotsLayout layout;
  layout.begin = align_up(slots * sizeof(SlotControl), kHugePageBytes);
  layout.stride = align_up(most_bytes, kHugePageBytes);
  if (slots > (kMost - layout.begin) / layout.stride) {
    throw InvalidArgument(fmt::format("shared slots: {} slots of {} are more than can be addressed", slots,
                                      format_bytes(most_bytes)));
  }
  layout.bytes = layout.begin + slots * layout.stride;
  return layout;
}

}  // namespace

struct SharedSlotsState {
  SharedSlotsState(SharedPages shared, std::size_t slot_count, std::size_t most)
      : pages(std::move(shared)),
        data(pages.bytes().data()),
        slots(slot_count),
        most_bytes(most),
        layout(layout_of(slot_count, most)),
        reader(slots),
        locker(std::make_unique<SlotLocker>([this](std::size_t slot) { lock_slot(slot); })) {}
  ~SharedSlotsState() {
    // In a child, the thread is the parent's.
    if (generation != fork_generation()) static_cast<void>(locker.release());
  }
  SharedSlotsState(const SharedSlotsState&) = delete;
  SharedSlotsState& operator=(const SharedSlotsState&) = delete;

  [[nodiscard]] SlotControl& control(std::size_t slot) const noexcept {
    return reinterpret_cast<SlotControl*>(data)[slot];
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> claimed(std::size_t slot) const noexcept {
    return std::atomic_ref(control(slot).claimed);
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> allowed(std::size_t slot) const noexcept {
    return std::atomic_ref(control(slot).allowed);
  }
  [[nodiscard]] std::byte* begin(std::size_t slot) const noexcept {
    return data + layout.begin + slot * layout.stride;
  }
  void check(std::size_t slot) const {
    if (slot >= slots) throw InvalidArgument(fmt::format("shared slots: no slot {} of {}", slot, slots));
  }
  /// Frees a slot: its bytes were read before.
  void free(std::size_t slot) noexcept { claimed(slot).store(0, std::memory_order_release); }

  void let_go(std::size_t slot, const std::optional<ForkCounts>& taken_at) noexcept {
    const std::lock_guard lock(mutex);
    if (taken_at && *taken_at != fork_counts()) {
      const bool by_workers = taken_at->others == fork_counts().others;
      reader[slot].held_by = by_workers ? Holder::workers : Holder::children;
      return;
    }
    free_taken(slot);
  }
  void return_lent() noexcept {
    const std::lock_guard lock(mutex);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (reader[slot].held_by == Holder::workers) free_taken(slot);
    }
  }
  void reclaim() noexcept {
    const std::lock_guard lock(mutex);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (!reader[slot].leased) free(slot);
    }
  }
  void want_lock(std::size_t slot, const Device& device) {
    const std::lock_guard lock(mutex);
    if (refused.empty()) reader[slot].wanted_by = device;
  }
  /// By the locker, for which the slot stays leased.
  void lock_slot(std::size_t slot) noexcept {
    auto& registration = reader[slot].registration;
    std::string why;
    try {
      const Device device = *std::exchange(reader[slot].wanted_by, std::nullopt);
      registration = Registration::attempt(device, begin(slot), reader[slot].room, &why);
    } catch (const std::exception& error) {
      why = error.what();
    }
    const std::lock_guard lock(mutex);
    if (!registration) refused = std::move(why);
    free_taken(slot);
  }
  void end_locks() noexcept {
    for (const std::size_t slot : locker->end()) {
      const std::lock_guard lock(mutex);
      free_taken(slot);
    }
  }
  /// There will be no writer any more. Frees the memory of what nobody has taken.
  void end() noexcept {
    end_locks();
    const std::lock_guard lock(mutex);
    ended = true;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (!reader[slot].leased) drop(slot);
    }
  }

  /// With the mutex.
  void free_taken(std::size_t slot) noexcept {
    reader[slot].held_by = Holder::nobody;
    if (reader[slot].wanted_by && refused.empty() && locker->add(slot)) return;
    reader[slot].wanted_by.reset();
    reader[slot].leased = false;
    free(slot);
    if (ended) drop(slot);
  }
  void drop(std::size_t slot) noexcept {
    if (reader[slot].room == 0) return;
    reader[slot].registration.reset();
    madvise(begin(slot), layout.stride, MADV_REMOVE);
  }

  enum class Holder : std::uint8_t { nobody, workers, children };
  struct Reader {
    std::atomic<bool> leased = false;
    Holder held_by = Holder::nobody;           // of a lease that was let go; guarded by the mutex
    std::atomic<std::size_t> room = 0;         // the most that was ever allowed
    std::optional<Registration> registration;  // changed with the slot's lease
    std::optional<Device> wanted_by;           // the same: for which it is to be locked
  };

  const SharedPages pages;  // unmapped after all registrations are gone
  std::byte* const data;
  const std::size_t slots;
  const std::size_t most_bytes;
  const SharedSlotsLayout layout;
  const std::uint64_t generation = fork_generation();
  bool is_reader = false;
  std::vector<Reader> reader;
  std::mutex mutex;
  bool ended = false;   // guarded by the mutex
  std::string refused;  // why a lock was; guarded by the mutex
  std::unique_ptr<SlotLocker> locker;
};

SlotLease::SlotLease(std::shared_ptr<SharedSlotsState> state, std::size_t slot, std::span<std::byte> bytes,
                     std::optional<ForkCounts> forks) noexcept
    : state_(std::move(state)), slot_(slot), bytes_(bytes), forks_(forks) {}

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    let_go();
    state_ = std::move(other.state_);
    slot_ = other.slot_;
    bytes_ = other.bytes_;
    forks_ = other.forks_;
  }
  return *this;
}

SlotLease::~SlotLease() { let_go(); }

void SlotLease::let_go() noexcept {
  const auto state = std::move(state_);
  if (!state || state->generation != fork_generation()) return;
  state->let_go(slot_, forks_);
}

SharedSlots::SharedSlots(std::shared_ptr<SharedSlotsState> state) noexcept : state_(std::move(state)) {}

SharedSlots::SharedSlots(std::size_t slots, std::size_t most_bytes, int numa_node) {
  const SharedSlotsLayout layout = layout_of(slots, most_bytes);
  state_ = std::make_shared<SharedSlotsState>(SharedPages(layout.bytes, "penstock-slots"), slots, most_bytes);
  state_->is_reader = true;
  bind_memory_to_node(state_->data + layout.begin, layout.bytes - layout.begin, numa_node);
}

SharedSlots::~SharedSlots() {
  if (state_ && state_->is_reader && state_->generation == fork_generation()) state_->end();
}

SharedSlots::SharedSlots(SharedSlots&&) noexcept = default;

SharedSlots SharedSlots::attach(int file, std::size_t slots, std::size_t most_bytes) {
  const SharedSlotsLayout layout = layout_of(slots, most_bytes);
  SharedPages pages = SharedPages::attach(file);
  if (pages.bytes().size() != layout.bytes) {
    throw InvalidArgument(fmt::format("shared slots: descriptor {} is not of {} slots of {}", file, slots,
                                      format_bytes(most_bytes)));
  }
  return SharedSlots(std::make_shared<SharedSlotsState>(std::move(pages), slots, most_bytes));
}

int SharedSlots::file() const noexcept { return state_->pages.file(); }

std::size_t SharedSlots::slots() const noexcept { return state_->slots; }

std::size_t SharedSlots::most_bytes() const noexcept { return state_->most_bytes; }

std::span<std::byte> SharedSlots::claim(std::size_t slot) noexcept {
  if (slot >= state_->slots) return {};
  const auto claimed = state_->claimed(slot);
  // What the reader has read is read before the writer writes.
  if (claimed.load(std::memory_order_acquire) != 0) return {};
  const std::span bytes(state_->begin(slot), state_->allowed(slot).load(std::memory_order_relaxed));
  if (!bytes.empty()) claimed.store(1, std::memory_order_relaxed);
  return bytes;
}

void SharedSlots::give_up(std::size_t slot) noexcept {
  if (slot < state_->slots) state_->free(slot);
}

void SharedSlots::allow(std::size_t slot, std::size_t bytes) {
  state_->check(slot);
  if (bytes > state_->most_bytes) {
    throw InvalidArgument(fmt::format("shared slots: {} do not fit a slot of {}", format_bytes(bytes),
                                      format_bytes(state_->most_bytes)));
  }
  std::atomic<std::size_t>& room = state_->reader[slot].room;
  if (bytes > room) room = bytes;
  state_->allowed(slot).store(bytes, std::memory_order_relaxed);
}

std::size_t SharedSlots::allowed(std::size_t slot) const {
  state_->check(slot);
  return state_->allowed(slot).load(std::memory_order_relaxed);
}

SlotLease SharedSlots::take(std::size_t slot, bool outlives_forks) {
  state_->check(slot);
  const ForkCounts forks = fork_counts();
  if (state_->claimed(slot).load(std::memory_order_acquire) == 0) {
    throw InvalidArgument(fmt::format("shared slots: slot {} was not filled", slot));
  }
  if (state_->reader[slot].leased.exchange(true)) {
    throw InvalidArgument(fmt::format("shared slots: slot {} is taken already", slot));
  }
  return {state_,
          slot,
          {state_->begin(slot), state_->reader[slot].room},
          outlives_forks ? std::optional(forks) : std::nullopt};
}

void SharedSlots::return_lent() noexcept { state_->return_lent(); }

std::size_t SharedSlots::retired() const noexcept {
  using Holder = SharedSlotsState::Holder;
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::size_t>(std::ranges::count_if(
      state_->reader, [](const auto& reader) { return reader.held_by == Holder::children; }));
}

bool SharedSlots::lock_soon(SlotLease& lease, const Device& device) {
  if (lease.state_ != state_) throw InvalidArgument("shared slots: this lease is not of these slots");
  auto& registration = state_->reader[lease.slot()].registration;
  if (registration && registration->bytes().size() >= lease.bytes().size()) {
    lease.forks_.reset();
    return true;
  }
  registration.reset();  // others would take the part that is locked for the whole
  state_->want_lock(lease.slot(), device);
  return false;
}

std::string SharedSlots::why_not_locked() const {
  const std::lock_guard lock(state_->mutex);
  return state_->refused;
}

void SharedSlots::end_locks() noexcept { state_->end_locks(); }

void SharedSlots::reclaim() noexcept { state_->reclaim(); }

}  // namespace penstock
