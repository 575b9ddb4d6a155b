#pragma once

#include "device/host/host_work.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace penstock {

struct HostCore;
class HostStream;

/// Knows the memory that enqueued work will touch, for the late mode. A destination is poisoned when its copy
/// is enqueued, unless work ahead of the copy still uses it. All devices share one book, since work of one
/// may touch the memory of another.
class LateBook {
 public:
  /// The book of this process, which ends with the last device that holds it.
  static std::shared_ptr<LateBook> of_process();

  /// Poisons the target of `work`, unless work ahead uses it. Enqueues `work`; returns its ticket.
  /// Thread-safe.
  std::uint64_t enqueue(HostStream& stream, const Work& work);

  /// Forgets the work of a device.
  void forget(const HostCore& device);

 private:
  using Bytes = std::span<const std::byte>;

  struct Access {
    std::shared_ptr<HostStream> stream;
    std::uint64_t ticket = 0;
    Bytes bytes;  // null: any memory
  };

  /// The memory that one piece of work reads and writes.
  struct Touched {
    Bytes written;
    std::vector<Bytes> read;
    bool anything = false;
  };

  [[nodiscard]] static Touched touched_by(const Work& work);
  [[nodiscard]] bool in_use(Bytes bytes) const;

  std::mutex mutex_;
  std::vector<Access> ahead_;
};

}  // namespace penstock
