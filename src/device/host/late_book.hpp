#pragma once

#include "device/host/host_work.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock {

class HostStream;

/// Knows the memory that enqueued work will touch, for the late mode. A destination is poisoned when its copy
/// is enqueued, unless work ahead of the copy still uses it. Such a destination is left alone until the copy
/// itself.
class LateBook {
 public:
  /// Poisons the memory that `work` will write, unless work ahead uses it, and enqueues `work`. Returns its
  /// ticket. Thread-safe.
  std::uint64_t enqueue(HostStream& stream, const Work& work);

  /// Forgets everything.
  void clear();

 private:
  struct Range {
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };

  struct Access {
    std::shared_ptr<HostStream> stream;
    std::uint64_t ticket = 0;
    Range range;  // null: anything
  };

  /// The memory that one piece of work reads and writes.
  struct Ranges {
    Range written;
    std::vector<Range> read;
    bool anything = false;
  };

  [[nodiscard]] static Ranges ranges_of(const Work& work);
  [[nodiscard]] bool in_use(const Range& range) const;

  std::mutex mutex_;
  std::vector<Access> ahead_;
};

}  // namespace penstock
