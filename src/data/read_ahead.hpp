#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// Memory of which a part may lie on a disk, since it maps a file. If a program touches a page that is
/// missing, it waits for that page alone. If it asks for the pages before, the disk reads many at once.
/// Thread-safe.
class ReadAhead {
 public:
  /// Looks at some pages of `pieces`, which takes microseconds, and again from time to time.
  explicit ReadAhead(std::vector<std::span<const std::byte>> pieces);

  /// True if a page of a file was missing. Never true below 64 MiB, and if the system does not tell: it tells
  /// of files that the process may write.
  [[nodiscard]] bool is_on_disk() const noexcept { return is_on_disk_.load(std::memory_order_relaxed); }
  /// Asks the system for `bytes` of a piece. Does not wait for the disk.
  void ask(std::span<const std::byte> bytes) const noexcept;

 private:
  [[nodiscard]] bool misses_pages() const noexcept;

  std::vector<std::span<const std::byte>> pieces_;
  std::size_t bytes_ = 0;
  mutable std::atomic<bool> is_on_disk_{false};
  mutable std::atomic<std::uint64_t> asked_{0};
};

}  // namespace penstock
