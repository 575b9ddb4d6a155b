#include "data/bulk_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock {

namespace {

// Long enough for the disk, short enough to stay in a processor's own cache until it is copied.
constexpr std::size_t kThroughBuffer = std::size_t{512} << 10;

/// For blocks that lie in part in a destination, or at another address than they may be read to.
std::span<std::byte> buffer_of_thread() {
  thread_local const HostPages buffer(kThroughBuffer + BlockRead::kSpareBytes);
  return buffer.bytes();
}

}  // namespace

BulkReader::BulkReader(File file, PositionedRead direct_preadv)
    : direct_(std::move(file)),
      residency_(direct_.file()),
      preadv_(direct_preadv),
      windows_(static_cast<std::size_t>((direct_.file().size() + kWindow - 1) / kWindow)) {}

std::size_t BulkReader::read(std::uint64_t offset, std::span<std::byte> destination) {
  std::size_t done = 0;
  while (done < destination.size()) {
    const std::uint64_t at = offset + done;
    const std::uint64_t window = at / kWindow;
    const auto part = destination.subspan(done, static_cast<std::size_t>(std::min<std::uint64_t>(
                                                    destination.size() - done, (window + 1) * kWindow - at)));
    const bool in_memory = is_in_memory(window);
    std::size_t got = 0;
    if (!in_memory && direct_.may_be_read()) {
      got = read_direct(at, part);
      past_cache_ += got;
    }
    if (got < part.size() && (in_memory || !direct_.may_be_read())) {
      if (!in_memory) std::call_once(ask_all_, [this] { ask_for_all_windows(); });
      const std::size_t more = file().read(at + got, part.subspan(got));
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
    known = residency_.has(begin, std::min(kWindow, file().size() - begin)) ? Place::memory : Place::disk;
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
  while (done < destination.size() && direct_.may_be_read()) {
    FilePiece piece{offset + done, destination.subspan(done)};
    if (!direct_.goes_straight(piece.offset, piece.destination)) {
      piece.destination = piece.destination.first(std::min(piece.destination.size(), kThroughBuffer));
    }
    const BlockRead read(direct_, {&piece, 1}, buffer_of_thread());
    const std::size_t got = read.finish(read_blocks(read));
    if (got == 0) break;
    done += got;
  }
  return done;
}

std::size_t BulkReader::read_blocks(const BlockRead& read) {
  for (;;) {
    const ssize_t got = preadv_(direct_.descriptor(), read.places().data(),
                                static_cast<int>(read.places().size()), static_cast<off_t>(read.offset()));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    // Perhaps more than direct reads is refused: the page cache's read tells.
    direct_.refuse();
    return 0;
  }
}

WeightReads BulkReader::reads() const noexcept {
  return {.cached = cached_, .direct = past_cache_, .buffered = through_cache_};
}

}  // namespace penstock
