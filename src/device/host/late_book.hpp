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

/// Of the late mode: knows what enqueued work will touch, so that a destination can be poisoned when its copy
/// is enqueued, without harming work that is rightly ahead of it. A destination that such work still uses is
/// left alone until the copy itself.
class LateBook {
 public:
  /// Poisons what `work` will write, where nothing ahead uses it, and enqueues it. Returns its ticket.
  /// Thread-safe.
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

  /// What a work reads and writes.
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
