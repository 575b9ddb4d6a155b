#pragma once

#include <penstock/data/pictures.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock {

/// Decoded pictures that stay until the end, as many as `bytes` have room for. Thread-safe.
class PictureCache {
 public:
  PictureCache(std::size_t bytes, std::size_t pictures) : left_(bytes), pictures_(pictures) {}
  ~PictureCache() {
    for (const auto& picture : pictures_) delete picture.load();
  }
  PictureCache(const PictureCache&) = delete;
  PictureCache& operator=(const PictureCache&) = delete;

  /// Null if it is not there.
  [[nodiscard]] const DecodedPicture* find(std::uint64_t number) const noexcept {
    return pictures_[static_cast<std::size_t>(number)].load(std::memory_order_acquire);
  }

  /// Keeps a copy, if there is room and another thread has not kept it meanwhile.
  void keep(std::uint64_t number, PictureSize size, std::span<const std::byte> pixels) {
    std::size_t left = left_.load();
    do {
      if (left < pixels.size()) return;
    } while (!left_.compare_exchange_weak(left, left - pixels.size()));
    auto kept = std::make_unique<const DecodedPicture>(size, std::vector(pixels.begin(), pixels.end()));
    const DecodedPicture* none = nullptr;
    if (pictures_[static_cast<std::size_t>(number)].compare_exchange_strong(none, kept.get())) {
      static_cast<void>(kept.release());
    } else {
      left_ += pixels.size();
    }
  }

 private:
  std::atomic<std::size_t> left_;
  std::vector<std::atomic<const DecodedPicture*>> pictures_;
};

}  // namespace penstock
