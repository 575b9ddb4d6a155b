#pragma once

#include "data/file.hpp"

#include <cstddef>
#include <cstdint>

namespace penstock {

/// Tells whether bytes of a file are in memory: in the system's page cache, or since the file system has no
/// other place for them. Thread-safe.
///
/// mincore answers without reading anything. But the kernel answers only the owner of a file and those who
/// may write it; it tells others that everything is there. They read a byte of the page that must not wait
/// for the disk. Such a read brings the page in, so the pages asked for differ from one Residency to the
/// next.
class Residency {
 public:
  explicit Residency(File file);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// True if the pages of the range are in memory, or, if it is large, some that are spread over it; also if
  /// the system cannot tell. Costs a few µs, whatever the size of the range, which is within the file and not
  /// empty.
  [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// True if mincore answers for this file.
  [[nodiscard]] bool knows_pages() const noexcept { return knows_pages_; }

 private:
  [[nodiscard]] bool has_page(std::uint64_t offset) const noexcept;

  const File file_;
  const std::uint64_t page_;
  const std::uint64_t salt_;
  std::byte* mapping_ = nullptr;  // never touched: a file that is cut short would kill the process
  std::size_t mapped_ = 0;
  bool knows_pages_ = false;
};

}  // namespace penstock
