#pragma once

#include <penstock/core/fork.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace penstock {

/// The right to read a filled slot of SharedSlots. When it is let go, the slot is free again. Move-only. It
/// keeps the memory mapped. In a process that is forked from the reader's, it neither reads nor frees the
/// slot.
class SlotLease {
 public:
  SlotLease(SlotLease&& other) noexcept = default;
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease();

  /// All that a writer of the slot was ever allowed to fill.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t slot() const noexcept { return slot_; }

 private:
  friend class SharedSlots;
  SlotLease(std::shared_ptr<struct SharedSlotsState> state, std::size_t slot, std::span<std::byte> bytes,
            std::optional<ForkCounts> forks) noexcept;
  void let_go() noexcept;

  std::shared_ptr<struct SharedSlotsState> state_;
  std::size_t slot_;
  std::span<std::byte> bytes_;
  std::optional<ForkCounts> forks_;  ///< at which no child has inherited it
};

/// Slots of shared memory that other processes fill, the writers, and this one reads. They lie in one file
/// without a name, which goes with its last process. Each slot has one writer. No lock is shared: a writer
/// may be killed at any time, and it never waits.
///
/// A writer claims a free slot, fills it, and tells its number to the reader by a way of their own. The
/// reader takes a lease of it. Memory is used once it is written: a slot may have room for much more than it
/// ever holds. Thread-safe, except that one thread at a time claims a given slot.
class SharedSlots {
 public:
  /// Makes `slots` slots with room for `most_bytes` each, on `numa_node` if it is not negative. Throws
  /// InvalidArgument for none, and Unsupported if the system refuses the memory's file or its addresses.
  SharedSlots(std::size_t slots, std::size_t most_bytes, int numa_node = -1);
  /// Leases stay valid. The memory of all other slots is freed, whoever has it mapped.
  ~SharedSlots();
  /// The other may only be destroyed then.
  SharedSlots(SharedSlots&&) noexcept;
  SharedSlots& operator=(SharedSlots&&) = delete;
  /// Maps the slots of another process, made with the same numbers. `file` stays the caller's. Throws
  /// InvalidArgument if it is another file, and Unsupported as above.
  [[nodiscard]] static SharedSlots attach(int file, std::size_t slots, std::size_t most_bytes);

  /// The descriptor of the file, closed with these slots.
  [[nodiscard]] int file() const noexcept;
  [[nodiscard]] std::size_t slots() const noexcept;
  [[nodiscard]] std::size_t most_bytes() const noexcept;

  /// Writer: the slot's bytes, from now on its own until the reader frees them. Empty if the slot is in use,
  /// or if nothing of it is allowed.
  [[nodiscard]] std::span<std::byte> claim(std::size_t slot) noexcept;
  /// Writer: frees a slot that it has claimed, and of which the reader will not hear.
  void give_up(std::size_t slot) noexcept;

  /// Reader, one thread at a time: how many bytes the writer may use, the next time that it claims the slot.
  /// 0 at first. Throws InvalidArgument above `most_bytes`.
  void allow(std::size_t slot, std::size_t bytes);
  [[nodiscard]] std::size_t allowed(std::size_t slot) const;
  /// Reader: takes a slot that was filled. Throws InvalidArgument if it was not claimed, or if it is taken
  /// already. `outlives_forks`: if this process forks before the lease is let go, a child may read the slot,
  /// so that it is not free again. If only worker processes were forked (see fork_counts), it is lent:
  /// return_lent frees it. Otherwise it is retired.
  [[nodiscard]] SlotLease take(std::size_t slot, bool outlives_forks = false);
  /// Reader: frees the slots that are lent. Only if the processes are gone that were forked as workers since
  /// they were taken.
  void return_lent() noexcept;
  /// Reader: the number of slots that are used no more.
  [[nodiscard]] std::size_t retired() const noexcept;
  /// Reader, with the lease of a slot: true if all that was allowed of it is locked for `device`. The lease
  /// then does not outlive forks. If it is not locked, a thread locks it, once the lease is let go and before
  /// the slot is free again: the writer has to do without the slot meanwhile. After a lock was refused, no
  /// other is tried. If more is allowed than is locked, the slot is unlocked now. Throws InvalidArgument for
  /// a lease of others. Does not block otherwise.
  [[nodiscard]] bool lock_soon(SlotLease& lease, const Device& device);
  /// Why a lock was refused. Empty if none was.
  [[nodiscard]] std::string why_not_locked() const;
  /// Waits for the lock that is being made. None is made any more. The destructor does the same.
  void end_locks() noexcept;
  /// Reader: frees the slots that nobody has taken. Only if no writer lives any more.
  void reclaim() noexcept;

 private:
  explicit SharedSlots(std::shared_ptr<struct SharedSlotsState> state) noexcept;
  std::shared_ptr<struct SharedSlotsState> state_;
};

}  // namespace penstock
