#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <vector>

namespace penstock::test {

/// An open descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& file)
      : descriptor_(::open(file.c_str(), O_RDWR | O_CLOEXEC)) {}
  ~Descriptor() { ::close(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// How many pages of `file` are in the page cache.
inline std::size_t cached_pages(const std::filesystem::path& file) {
  const Descriptor opened(file);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(file));
  const auto page = static_cast<std::size_t>(::getpagesize());
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.get(), 0);
  std::vector<unsigned char> states((bytes + page - 1) / page);
  ::mincore(mapping, bytes, states.data());
  ::munmap(mapping, bytes);
  return static_cast<std::size_t>(
      std::ranges::count_if(states, [](unsigned char state) { return state & 1; }));
}

/// Writes `file` to the disk and has the page cache forget it. False if the file system keeps it in memory.
[[nodiscard]] inline bool make_cold(const std::filesystem::path& file) {
  const Descriptor opened(file);
  ::fsync(opened.get());
  ::posix_fadvise(opened.get(), 0, 0, POSIX_FADV_DONTNEED);
  return cached_pages(file) == 0;
}

}  // namespace penstock::test

/// Ends the test if files of its directory cannot leave memory.
#define PENSTOCK_MAKE_COLD(file) \
  if (!penstock::test::make_cold(file)) GTEST_SKIP() << "this file system keeps its files in memory"
