#include "data/bulk_reader.hpp"

#include <penstock/core/bytes.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {

namespace {

// Long enough for the disk, short enough to stay in a processor's own cache until it is copied.
constexpr std::size_t kBufferBytes = (std::size_t{512} << 10) + (std::size_t{16} << 10);

constexpr std::size_t kLargestBlock = std::size_t{8} << 10;

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

/// For blocks that lie in part in a destination, or at another address than they may be read to.
std::span<std::byte> buffer_of_thread() {
  thread_local const HostPages buffer(kBufferBytes);
  return buffer.bytes();
}

}  // namespace

BulkReader::BulkReader(File file, PositionedRead direct_preadv)
    : file_(std::move(file)),
      residency_(file_),
      preadv_(direct_preadv),
      windows_(static_cast<std::size_t>((file_.size() + kWindow - 1) / kWindow)) {
  const Alignment alignment = alignment_of(file_.descriptor());
  offset_alignment_ = alignment.offset;
  address_alignment_ = alignment.address;
  if (offset_alignment_ == 0 || offset_alignment_ > kLargestBlock || address_alignment_ > kSafeAlignment)
    return;
  // The same file, whatever its name stands for by now.
  const std::string path = fmt::format("/proc/self/fd/{}", file_.descriptor());
  direct_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  may_be_direct_ = direct_ >= 0;
}

BulkReader::~BulkReader() {
  if (direct_ >= 0) ::close(direct_);
}

std::size_t BulkReader::read(std::uint64_t offset, std::span<std::byte> destination) {
  std::size_t done = 0;
  while (done < destination.size()) {
    const std::uint64_t at = offset + done;
    const std::uint64_t window = at / kWindow;
    const auto part = destination.subspan(done, static_cast<std::size_t>(std::min<std::uint64_t>(
                                                    destination.size() - done, (window + 1) * kWindow - at)));
    const bool in_memory = is_in_memory(window);
    std::size_t got = 0;
    if (!in_memory && may_be_direct_) {
      got = read_direct(at, part);
      past_cache_ += got;
    }
    if (got < part.size() && (in_memory || !may_be_direct_)) {
      if (!in_memory) std::call_once(ask_all_, [this] { ask_for_all_windows(); });
      const std::size_t more = file_.read(at + got, part.subspan(got));
      (in_memory ? cached_ : through_cache_) += more;
      got += more;
    }
    done += got;
    if (got < part.size()) break;
  }
  return done;
}

bool BulkReader::is_in_memory(std::uint64_t window) noexcept {
  if (window >= windows_.size()) return true;  // past the end there was when the file was opened
  std::atomic<Place>& place = windows_[static_cast<std::size_t>(window)];
  Place known = place.load(std::memory_order_relaxed);
  if (known == Place::unknown) {
    const std::uint64_t begin = window * kWindow;
    known = residency_.has(begin, std::min(kWindow, file_.size() - begin)) ? Place::memory : Place::disk;
    place.store(known, std::memory_order_relaxed);
  }
  return known == Place::memory;
}

void BulkReader::ask_for_all_windows() noexcept {
  for (std::uint64_t window = 0; window < windows_.size(); ++window) {
    static_cast<void>(is_in_memory(window));
  }
}

std::size_t BulkReader::read_direct(std::uint64_t offset, std::span<std::byte> destination) {
  std::size_t done = 0;
  while (done < destination.size() && may_be_direct_) {
    const std::uint64_t at = offset + done;
    const auto rest = destination.subspan(done);
    const std::uintptr_t next_block =
        reinterpret_cast<std::uintptr_t>(rest.data()) + static_cast<std::size_t>(-at % offset_alignment_);
    const bool complies = next_block % address_alignment_ == 0 && rest.size() >= 2 * offset_alignment_;
    const std::size_t got = complies ? read_in_place(at, rest) : read_through_buffer(at, rest);
    if (got == 0) break;
    done += got;
  }
  return done;
}

std::size_t BulkReader::read_in_place(std::uint64_t offset, std::span<std::byte> destination) {
  const std::size_t block = offset_alignment_;
  const auto before = static_cast<std::size_t>(offset % block);
  const std::size_t head = before == 0 ? 0 : block - before;
  const std::size_t tail = (destination.size() - head) % block;
  const std::size_t middle = destination.size() - head - tail;
  std::byte* const buffer = buffer_of_thread().data();
  std::array<iovec, 3> places;
  std::size_t count = 0;
  if (head != 0) places[count++] = {buffer, block};
  places[count++] = {destination.data() + head, middle};
  if (tail != 0) places[count++] = {buffer + block, block};
  std::size_t got = read_blocks(offset - before, std::span(places).first(count));
  got = std::min(got - std::min(got, before), destination.size());
  std::memcpy(destination.data(), buffer + before, std::min(got, head));
  if (got > head + middle) {
    std::memcpy(destination.data() + head + middle, buffer + block, got - head - middle);
  }
  return got;
}

std::size_t BulkReader::read_through_buffer(std::uint64_t offset, std::span<std::byte> destination) {
  const auto buffer = buffer_of_thread();
  const auto before = static_cast<std::size_t>(offset % offset_alignment_);
  const std::size_t wanted = std::min(destination.size(), buffer.size() - before);
  const iovec place{buffer.data(), align_up(before + wanted, offset_alignment_)};
  std::size_t got = read_blocks(offset - before, {&place, 1});
  got = std::min(got - std::min(got, before), wanted);
  std::memcpy(destination.data(), buffer.data() + before, got);
  return got;
}

std::size_t BulkReader::read_blocks(std::uint64_t offset, std::span<const iovec> places) {
  for (;;) {
    const ssize_t got =
        preadv_(direct_, places.data(), static_cast<int>(places.size()), static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    // Perhaps more than direct reads is refused: the page cache's read tells.
    may_be_direct_ = false;
    return 0;
  }
}

WeightReads BulkReader::reads() const noexcept {
  return {.cached = cached_, .direct = past_cache_, .buffered = through_cache_};
}

}  // namespace penstock
