#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock {

/// Samples that stay in memory until the end: the first ones for which `bytes` have room. If each epoch has
/// every sample once, in any order, no other choice finds more of them. Thread-safe.
template <typename Sample>
class KeptSamples {
 public:
  KeptSamples(std::size_t bytes, std::uint64_t samples)
      : left_(bytes), samples_(bytes == 0 ? 0 : static_cast<std::size_t>(samples)) {}
  ~KeptSamples() {
    for (const auto& sample : samples_) delete sample.load();
  }
  KeptSamples(const KeptSamples&) = delete;
  KeptSamples& operator=(const KeptSamples&) = delete;

  /// Null if it is not there.
  [[nodiscard]] const Sample* find(std::uint64_t number) const noexcept {
    return samples_.empty() ? nullptr
                            : samples_[static_cast<std::size_t>(number)].load(std::memory_order_acquire);
  }

  /// Keeps a sample made of `parts`, which takes so many bytes, if there is room and another thread has not
  /// kept it meanwhile.
  template <typename... Parts>
  void keep(std::uint64_t number, std::size_t bytes, Parts&&... parts) {
    std::size_t left = left_.load();
    do {
      if (left < bytes) return;
    } while (!left_.compare_exchange_weak(left, left - bytes));
    auto kept = std::make_unique<const Sample>(std::forward<Parts>(parts)...);
    const Sample* none = nullptr;
    if (samples_[static_cast<std::size_t>(number)].compare_exchange_strong(none, kept.get())) {
      static_cast<void>(kept.release());
    } else {
      left_ += bytes;
    }
  }

 private:
  std::atomic<std::size_t> left_;
  std::vector<std::atomic<const Sample*>> samples_;
};

}  // namespace penstock
