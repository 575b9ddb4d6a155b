#pragma once

#include "doctor/read/recording_format.hpp"
#include "python_stack.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::recorder {

/// Where a thread was seen between two of its calls of CUDA. One thread looks and adds, and the one that is
/// looked at takes. Neither waits: what one of them has in hand, the other leaves for later.
class SeenPlaces {
 public:
  static constexpr std::size_t kMostPlaces = 16;
  static constexpr std::size_t kMostLooks = 64;

  /// Adds a look. It has no place if that is one too many: it still tells that the thread waited for no
  /// loader. If there are too many looks, every second one is left out, also of those that come until all are
  /// taken.
  void add(std::span<const PythonFrame> frames, std::uint64_t time) noexcept {
    if (!claim()) return;
    if (is_due()) keep(frames, time);
    release();
  }

  /// Asks `number` for the number of each place, by its frames, and gives `note` the time and the number of
  /// each look, in the order of their times: 0 if it has no place. Then nothing is there.
  template <typename Number, typename Note>
  void take(Number&& number, Note&& note) noexcept {
    if (!has_looks_.load(std::memory_order_relaxed) || !claim()) return;
    std::uint64_t numbers[kMostPlaces + 1] = {};
    for (std::size_t i = 0; i < place_count_; ++i)
      numbers[i] = number(std::span<const PythonFrame>(places_[i].frames, places_[i].frame_count));
    for (std::size_t i = 0; i < look_count_; ++i) note(looks_[i].time, numbers[looks_[i].place]);
    forget();
    release();
  }

 private:
  struct Place {
    std::size_t frame_count = 0;
    PythonFrame frames[recording::kMostFrames];
  };
  struct Look {
    std::uint64_t time = 0;
    std::size_t place = 0;  ///< kMostPlaces: none
  };

  [[nodiscard]] bool claim() noexcept { return !is_claimed_.exchange(true, std::memory_order_acquire); }
  void release() noexcept { is_claimed_.store(false, std::memory_order_release); }

  [[nodiscard]] bool is_due() noexcept;
  void keep(std::span<const PythonFrame> frames, std::uint64_t time) noexcept;
  [[nodiscard]] std::size_t find_or_add(std::span<const PythonFrame> frames) noexcept;
  void leave_out_every_second() noexcept;
  void forget() noexcept;

  std::atomic<bool> has_looks_{false};
  std::atomic<bool> is_claimed_{false};
  std::size_t place_count_ = 0;
  std::size_t look_count_ = 0;
  std::size_t thinned_ = 0;  ///< how often every second look was left out
  std::size_t skipped_ = 0;
  Look looks_[kMostLooks];
  Place places_[kMostPlaces];
};

}  // namespace penstock::recorder
