#pragma once

#include "data/async_reads.hpp"

#include <algorithm>
#include <atomic>

namespace penstock::test {

/// Has disks bring what is read past the page cache one by one, and counts it, from its beginning to its end.
class OneByOne {
 public:
  OneByOne() {
    under_way_ = drained_ = 0;
    AsyncReads::stand_in(kCalls);
  }
  ~OneByOne() { AsyncReads::stand_in(AsyncReads::kSystem); }
  OneByOne(const OneByOne&) = delete;
  OneByOne& operator=(const OneByOne&) = delete;

  /// Reads that were asked for, and that nobody has seen the end of.
  [[nodiscard]] long under_way() const { return under_way_; }
  /// How often there was none under way any more.
  [[nodiscard]] long drained() const { return drained_; }

 private:
  static long submit(aio_context_t context, long count, iocb** requests) {
    const long begun = AsyncReads::kSystem.submit(context, count, requests);
    under_way_ += std::max(begun, 0L);
    return begun;
  }
  static long get_events(aio_context_t context, long /*least*/, long /*most*/, io_event* events) {
    const long got = AsyncReads::kSystem.get_events(context, 1, 1, events);
    if (got > 0 && (under_way_ -= got) == 0) ++drained_;
    return got;
  }
  static constexpr AsyncReads::Calls kCalls{
      [](std::size_t most, aio_context_t* context) { return AsyncReads::kSystem.setup(most, context); },
      submit, get_events};
  static inline std::atomic<long> under_way_{0};
  static inline std::atomic<long> drained_{0};
};

}  // namespace penstock::test
