#include "data/mapped_files.hpp"

#include <penstock/core/error.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace penstock {

namespace {

constexpr std::size_t kPartOfDescriptors = 8;

}  // namespace

// The system would read on behind each sample that it reads.
MappedFiles::Opened::Opened(const File& file) : direct(file), residency(file) {
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
}

MappedFiles::MappedFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    most_ = static_cast<std::size_t>(limit.rlim_cur) / kPartOfDescriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t offset = 0;
    std::uint64_t inode = 0;
    char rights[5] = {};
    int path = 0;
    // Address range, rights, offset, device, inode and path: proc_pid_maps(5).
    const int read = std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %*s %" SCNu64 " %n",
                                 &begin, &end, rights, &offset, &inode, &path);
    if (read != 5 || inode == 0) continue;
    Range& range = ranges_.emplace_back();
    range.begin = begin;
    range.end = end;
    range.offset = offset;
    range.inode = inode;
    range.is_same = rights[3] == 's' || rights[1] != 'w';
    range.path = line.substr(static_cast<std::size_t>(path));
  }
}

MappedFiles::Place MappedFiles::find(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto after = std::ranges::upper_bound(ranges_, begin, {}, &Range::begin);
  if (after == ranges_.begin()) return {};
  Range& range = *std::prev(after);
  if (begin + memory.size() > range.end) return {};
  std::call_once(range.once, [&] { open(range); });
  return {range.opened.get(), range.offset + (begin - range.begin), range.is_same};
}

/// Leaves it closed if it is a device, or the path stands for another file by now.
void MappedFiles::open(Range& range) {
  if (opened_.fetch_add(1) >= most_) return;
  struct stat status{};
  if (::stat(range.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  try {
    const File file(range.path);
    if (::fstat(file.descriptor(), &status) != 0 || status.st_ino != range.inode) return;
    range.opened = std::make_unique<Opened>(file);
  } catch (const Error&) {  // such as a file that was deleted
  }
}

}  // namespace penstock
