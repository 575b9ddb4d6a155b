#include "data/residency.hpp"

#include <penstock/core/bytes.hpp>

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

namespace penstock {

namespace {

constexpr std::uint64_t kAsked = 8;  // pages of a range
constexpr std::uint64_t kFew = 128;  // all pages of such a range are asked for

/// Well mixed bits of `value`.
std::uint64_t mixed(std::uint64_t value) noexcept {
  value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9;
  return value ^ (value >> 32);
}

}  // namespace

Residency::Residency(File file)
    : file_(std::move(file)),
      page_(static_cast<std::uint64_t>(::getpagesize())),
      salt_(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())) {
  const std::size_t end = align_up(static_cast<std::size_t>(file_.size()), static_cast<std::size_t>(page_));
  mapped_ = end + static_cast<std::size_t>(page_);
  void* data = ::mmap(nullptr, mapped_, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (data == MAP_FAILED) return;
  mapping_ = static_cast<std::byte*>(data);
  // The page past the end is there for those only whom the kernel tells nothing.
  knows_pages_ = !has_page(end);
}

Residency::~Residency() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

bool Residency::has(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  const std::uint64_t begin = offset - offset % page_;
  std::array<unsigned char, kFew> states{};
  if (knows_pages_ && offset + bytes - begin <= kFew * page_) {
    const auto length = static_cast<std::size_t>(offset + bytes - begin);
    if (::mincore(mapping_ + begin, length, states.data()) != 0) return true;
    return std::ranges::all_of(std::span(states).first((length + page_ - 1) / page_),
                               [](unsigned char state) { return (state & 1) != 0; });
  }
  const std::uint64_t pages = std::min(kAsked, bytes / page_ + 1);
  for (std::uint64_t i = 0; i < pages; ++i) {
    const std::uint64_t part = bytes / pages;
    const std::uint64_t at = offset + i * part + mixed(salt_ + offset + i) % std::max<std::uint64_t>(part, 1);
    if (knows_pages_) {
      if (!has_page(at)) return false;
      continue;
    }
    std::byte byte{};
    iovec one{&byte, 1};
    if (::preadv2(file_.descriptor(), &one, 1, static_cast<off_t>(at), RWF_NOWAIT) < 0 && errno == EAGAIN) {
      return false;
    }
  }
  return true;
}

bool Residency::has_page(std::uint64_t offset) const noexcept {
  unsigned char state = 1;
  std::byte* const page = mapping_ + (offset - offset % page_);
  return ::mincore(page, static_cast<std::size_t>(page_), &state) != 0 || (state & 1) != 0;
}

}  // namespace penstock
