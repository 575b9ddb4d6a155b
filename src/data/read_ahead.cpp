#include "data/read_ahead.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kLeastBytes = std::size_t{64} << 20;
constexpr std::size_t kLooks =
    64;  // if a tenth is missing, one of a thousand looks at all of them finds none
constexpr std::uint64_t kAsksBetweenLooks = std::uint64_t{1} << 16;

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::getpagesize());
  return bytes;
}

std::uintptr_t page_of(const std::byte* at) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  return address - address % page_bytes();
}

/// True if the memory at `at` maps a file. Memory that nobody has touched yet has no pages either.
bool maps_file(const std::byte* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t inode = 0;
    // Address range, rights, offset, device and inode: proc_pid_maps(5).
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64, &begin, &end, &inode) ==
            3 &&
        begin <= address && address < end) {
      return inode != 0;
    }
  }
  return false;
}

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> pieces) : pieces_(std::move(pieces)) {
  for (const auto& piece : pieces_) bytes_ += piece.size();
  if (bytes_ >= kLeastBytes && misses_pages()) is_on_disk_ = maps_file(pieces_.front().data());
}

bool ReadAhead::misses_pages() const noexcept {
  std::size_t piece = 0;
  std::size_t before = 0;  // bytes of the pieces before `piece`
  for (std::size_t look = 0; look < kLooks; ++look) {
    const std::size_t at = bytes_ / kLooks * look;
    while (at >= before + pieces_[piece].size()) before += pieces_[piece++].size();
    unsigned char state = 1;
    auto* const page = reinterpret_cast<void*>(page_of(pieces_[piece].data() + (at - before)));
    if (::mincore(page, page_bytes(), &state) == 0 && (state & 1) == 0) return true;
  }
  return false;
}

void ReadAhead::ask(std::span<const std::byte> bytes) const noexcept {
  const std::uintptr_t begin = page_of(bytes.data());
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size());
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED));
  if (asked_.fetch_add(1, std::memory_order_relaxed) % kAsksBetweenLooks == kAsksBetweenLooks - 1 &&
      !misses_pages()) {
    is_on_disk_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace penstock
