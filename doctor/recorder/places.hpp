#pragma once

#include "python_stack.hpp"
#include "recording_file.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <span>

namespace penstock::recorder {

/// Numbers by key, for keys that are added and stay. Reading takes no lock.
class NumberTable {
 public:
  /// 0: not known.
  [[nodiscard]] std::uint32_t find(std::uint64_t key) const noexcept;
  /// True if no more can be added.
  [[nodiscard]] bool is_full() const noexcept { return used_ >= kSlots / 4 * 3; }
  /// False if the table is full. Not to be called by two threads at once.
  bool add(std::uint64_t key, std::uint32_t number) noexcept;

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 14;
  struct Slot {
    std::atomic<std::uint64_t> key{0};
    std::uint32_t number = 0;
  };
  Slot slots_[kSlots];
  std::size_t used_ = 0;
};

/// Never 0. A code object's address may come again once it is gone, but hardly with the same names.
[[nodiscard]] std::uint64_t code_key(const PythonFrame& frame) noexcept;

/// Writes each stack into the recording once. Thread-safe.
class Places {
 public:
  Places(RecordingFile& file, const PythonStack& python) noexcept : file_(file), python_(python) {}

  /// The number of the calling thread's stack, 0 if it has none or there is no room for it.
  [[nodiscard]] std::uint64_t own() noexcept;
  /// 0: these frames are not known.
  [[nodiscard]] std::uint64_t known(std::span<const PythonFrame> frames) const noexcept;
  /// That of these frames.
  [[nodiscard]] std::uint64_t number(std::span<const PythonFrame> frames) noexcept;

 private:
  [[nodiscard]] std::uint64_t add(std::span<const PythonFrame> frames, std::uint64_t key) noexcept;
  [[nodiscard]] bool add_frame(const PythonFrame& frame, std::uint32_t& number) noexcept;
  [[nodiscard]] bool add_text(const PythonFrame& frame) noexcept;

  RecordingFile& file_;
  const PythonStack& python_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  NumberTable frames_;  // numbers from 1 on
  NumberTable stacks_;
  std::uint32_t frame_count_ = 0;
  std::uint32_t stack_count_ = 0;
};

}  // namespace penstock::recorder
