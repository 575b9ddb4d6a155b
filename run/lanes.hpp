#pragma once

#include "run/driver.hpp"
#include "run/piece_mover.hpp"

#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::run {

/// Pinned slots that the copies of one stream pass through, and what moves bytes into and out of them.
struct Lane {
  Lane(const Device& device, Pool& pinned, const std::shared_ptr<HostWorkers>& workers)
      : slots(device, pinned, kSlots, kSlotBytes), mover(workers) {}

  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = std::size_t{4} << 20;

  /// A slot of the present copy, which takes them in turn.
  [[nodiscard]] PinnedRing::Slot& slot(std::size_t number) { return slots[(turn + number) % kSlots]; }

  PinnedRing slots;
  std::size_t turn = 0;                     ///< slots that the copies before have used
  PieceMover mover;                         ///< owned by the thread that has taken the lane
  std::pair<Stream, std::thread::id> user;  ///< the stream; and whose, if it is the thread's
  bool taken = false;
};

/// The lanes of a device. A copy has a lane for itself, and waits for no stream but its own: who waits for
/// the work of another stream may wait forever. Thread-safe.
class Lanes {
 public:
  explicit Lanes(const Device& device);

  /// Gives the lane back.
  struct Return {
    Lanes* lanes = nullptr;
    void operator()(Lane* lane) const noexcept { lanes->give_back(*lane); }
  };
  using Use = std::unique_ptr<Lane, Return>;

  /// A lane for a copy on `stream`. Null if other streams have all that there is memory for. Throws
  /// DeviceError.
  [[nodiscard]] Use take(Stream stream);

 private:
  void give_back(Lane& lane) noexcept;
  /// Null if there are enough.
  [[nodiscard]] Lane* add();

  const Device device_;
  const std::shared_ptr<HostWorkers> workers_;
  std::mutex mutex_;
  Pool pinned_;
  // Guarded by the mutex, also what the users of lanes are.
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t most_ = 4;
};

}  // namespace penstock::run
