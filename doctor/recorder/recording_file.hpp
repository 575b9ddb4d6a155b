#pragma once

#include "doctor/read/recording_format.hpp"

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::recorder {

/// The mapped file of a recording. Nothing is thrown, and nothing is allocated after `open`. Thread-safe.
class RecordingFile {
 public:
  /// Makes `folder`/PROCESS.penstock with room for `capacity` records. It has this name once its header is
  /// complete. False if it cannot be made: then an empty file of the unfinished name may stay.
  bool open(const char* folder, std::uint64_t capacity) noexcept;
  [[nodiscard]] bool is_open() const noexcept { return base_ != nullptr; }
  [[nodiscard]] recording::Header& header() const noexcept {
    return *reinterpret_cast<recording::Header*>(base_);
  }

  /// Adds a record, over the oldest one if the ring is full.
  void add(recording::Record record) noexcept;
  /// Adds an entry of the text. False if there is no room left.
  bool add_text(recording::TextType type, const void* head, std::size_t head_bytes, std::string_view text,
                std::string_view more = {}) noexcept;
  void note(std::string_view sentence) noexcept { add_text(recording::TextType::note, nullptr, 0, sentence); }

 private:
  void begin(void* base, std::uint64_t capacity) noexcept;
  [[nodiscard]] bool extend() noexcept;
  [[nodiscard]] bool make_room(std::uint64_t index) noexcept;

  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  std::uint64_t file_bytes_ = 0;
  std::atomic<std::uint64_t> ready_{0};  ///< records that the disk has room for
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

/// Locks while it lives.
class Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) noexcept : mutex_(mutex) { ::pthread_mutex_lock(&mutex_); }
  ~Lock() { ::pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace penstock::recorder
