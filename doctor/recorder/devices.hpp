#pragma once

#include "recording_file.hpp"

#include <atomic>
#include <cstdint>

namespace penstock::recorder {

/// The devices that did something: their names, as text of the recording. Knows those with
/// numbers below 64.
class Devices {
 public:
  /// Any thread may call it.
  void see(std::uint32_t device) noexcept {
    if (device < 64) seen_.fetch_or(std::uint64_t{1} << device, std::memory_order_relaxed);
  }
  /// Asks the driver, if the program has loaded it, for those that were seen since the last call. Not to be
  /// called by two threads at once.
  void note(RecordingFile& file) noexcept;

 private:
  std::atomic<std::uint64_t> seen_{0};
  std::uint64_t noted_ = 0;
};

}  // namespace penstock::recorder
