#include "data/direct_file.hpp"

#include <penstock/core/bytes.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock {

namespace {

// If the kernel does not tell (before Linux 6.1): a page, which every file system takes.
constexpr std::size_t kSafeAlignment = 4096;

struct Alignment {
  std::size_t offset = kSafeAlignment;  ///< of offsets and sizes; 0: there are no direct reads
  std::size_t address = kSafeAlignment;
};

Alignment alignment_of(int descriptor) {
  Alignment alignment;
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    alignment = {status.stx_dio_offset_align, status.stx_dio_mem_align};
  }
#else
  static_cast<void>(descriptor);
#endif
  return alignment;
}

}  // namespace

DirectFile::DirectFile(File file) : file_(std::move(file)) {
  const Alignment alignment = alignment_of(file_.descriptor());
  block_ = alignment.offset;
  address_alignment_ = alignment.address;
  if (block_ == 0 || block_ > kLargestBlock || address_alignment_ > kSafeAlignment) return;
  // The same file, whatever its name stands for by now.
  const std::string path = fmt::format("/proc/self/fd/{}", file_.descriptor());
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  may_be_read_ = descriptor_ >= 0;
}

DirectFile::~DirectFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool DirectFile::goes_straight(std::uint64_t offset, std::span<std::byte> destination) const noexcept {
  const std::uintptr_t next_block =
      reinterpret_cast<std::uintptr_t>(destination.data()) + static_cast<std::size_t>(-offset % block_);
  return next_block % address_alignment_ == 0 && destination.size() >= 2 * block_;
}

BlockRead::BlockRead(const DirectFile& file, std::span<const FilePiece> pieces, std::span<std::byte> buffer)
    : pieces_(pieces),
      buffer_(buffer.data()),
      begin_(pieces.front().offset),
      before_(static_cast<std::size_t>(begin_ % file.block_bytes())),
      block_(file.block_bytes()) {
  for (const FilePiece& piece : pieces) {
    wanted_ = std::max(wanted_, static_cast<std::size_t>(piece.offset - begin_) + piece.destination.size());
  }
  const std::span<std::byte> first = pieces.front().destination;
  if (pieces.size() > 1 || !file.goes_straight(begin_, first)) {
    places_[count_++] = {buffer_, align_up(before_ + wanted_, block_)};
    return;
  }
  head_ = before_ == 0 ? 0 : block_ - before_;
  const std::size_t tail = (wanted_ - head_) % block_;
  middle_ = wanted_ - head_ - tail;
  if (head_ != 0) places_[count_++] = {buffer_, block_};
  places_[count_++] = {first.data() + head_, middle_};
  if (tail != 0) places_[count_++] = {buffer_ + block_, block_};
}

std::size_t BlockRead::finish(std::size_t got) const noexcept {
  const std::size_t there = std::min(got - std::min(got, before_), wanted_);
  if (middle_ != 0) {
    std::byte* const to = pieces_.front().destination.data();
    std::memcpy(to, buffer_ + before_, std::min(there, head_));
    const std::size_t straight = head_ + middle_;
    if (there > straight) std::memcpy(to + straight, buffer_ + block_, there - straight);
    return there;
  }
  for (const FilePiece& piece : pieces_) {
    const auto at = static_cast<std::size_t>(piece.offset - begin_);
    const std::size_t bytes = std::min(there - std::min(there, at), piece.destination.size());
    std::memcpy(piece.destination.data(), buffer_ + before_ + at, bytes);
  }
  return there;
}

}  // namespace penstock
