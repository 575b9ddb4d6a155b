#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

namespace penstock::recorder {

/// The buffers that CUPTI fills. They are used again: fresh memory costs the program's threads a page fault
/// for each page that they write. Those that are full wait here to be read, because CUPTI may hold its locks
/// while it hands them over. Thread-safe, and nothing is thrown.
class ActivityBuffers {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMostFull = 64;  ///< that wait to be read
  static constexpr std::size_t kMostFree = 16;

  struct Full {
    std::uint8_t* buffer = nullptr;
    std::size_t valid_bytes = 0;
  };

  /// A buffer of kBytes, aligned to 64 bytes; null if there is no memory.
  [[nodiscard]] std::uint8_t* take() noexcept;
  /// False if too many wait already: read this one now, and give it back.
  [[nodiscard]] bool keep(Full full) noexcept;
  /// The buffer that has waited longest; a null one if none waits.
  [[nodiscard]] Full next() noexcept;
  void give_back(std::uint8_t* buffer) noexcept;

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  Full full_[kMostFull];
  std::size_t first_full_ = 0;
  std::size_t full_count_ = 0;
  std::uint8_t* free_[kMostFree] = {};
  std::size_t free_count_ = 0;
};

}  // namespace penstock::recorder
