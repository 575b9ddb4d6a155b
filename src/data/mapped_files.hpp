#pragma once

#include "data/direct_file.hpp"
#include "data/residency.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace penstock {

/// The files that the address space maps, as of when it was made. Thread-safe.
class MappedFiles {
 public:
  MappedFiles();

  struct Opened {
    explicit Opened(const File& file);
    /// True if the bytes are in memory. False if the system does not tell: to ask it would bring a page.
    [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes) const noexcept {
      return residency.knows_pages() && residency.has(offset, bytes);
    }
    DirectFile direct;
    Residency residency;
  };
  /// Where memory lies in a file.
  struct Place {
    Opened* file = nullptr;  ///< null: in none, or the file cannot be opened
    std::uint64_t offset = 0;
    bool is_same = false;  ///< the memory has the file's bytes: the process cannot have changed it for itself
  };
  /// Opens the file if it is asked for it the first time.
  [[nodiscard]] Place find(std::span<const std::byte> memory);

 private:
  /// Of addresses.
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t offset = 0;
    std::uint64_t inode = 0;
    bool is_same = false;
    std::string path;
    std::once_flag once;
    std::unique_ptr<Opened> opened;
  };
  void open(Range& range);

  std::deque<Range> ranges_;  ///< ascending
  std::size_t most_ = 0;      ///< files to open: a program needs descriptors for others
  std::atomic<std::size_t> opened_{0};
};

}  // namespace penstock
