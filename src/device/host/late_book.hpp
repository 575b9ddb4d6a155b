#pragma once

#include "device/host/host_work.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace penstock {

class HostStream;

/// Knows the memory that enqueued work will touch, for the late mode. A destination is poisoned when its copy
/// is enqueued, unless work ahead of the copy still uses it.
class LateBook {
 public:
  /// Poisons the target of `work`, unless work ahead uses it. Enqueues `work`; returns its ticket.
  /// Thread-safe.
  std::uint64_t enqueue(HostStream& stream, const Work& work);

  /// Forgets everything.
  void clear();

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
