#include "core/shared/gather_rows.hpp"

#include <algorithm>
#include <cstring>

namespace penstock {

namespace {

constexpr std::size_t kLine = 64;

// Rows up to this size are prefetched as a whole. Of larger rows only the first lines are: the processor's
// own prefetcher finds the rest.
constexpr std::size_t kPrefetchBytes = 1024;

// Bytes to keep in flight: enough to hide a miss to memory, and few enough to stay in the first-level cache.
constexpr std::size_t kAheadBytes = 4096;

constexpr std::size_t kLargeRow = 4096;

// Pieces: a small row takes 5 to 30 ns, and handing work to another thread some µs.
constexpr std::size_t kPiecesAThread = 4;
constexpr std::size_t kMostPieceBytes = std::size_t{256} << 10;
constexpr std::size_t kMostPieceRows = 1024;
constexpr std::size_t kLeastPieceBytes = std::size_t{16} << 10;
constexpr std::size_t kLeastPieceRows = 256;

void prefetch(const std::byte* row, std::size_t bytes) noexcept {
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(row + offset, 0, 3);
  __builtin_prefetch(row + bytes - 1, 0, 3);
}

// With a constant size, each copy is a few loads and stores.
template <std::size_t kBytes>
struct FixedCopy {
  static constexpr std::size_t size() noexcept { return kBytes; }
  void operator()(std::byte* to, const std::byte* from) const noexcept { std::memcpy(to, from, kBytes); }
};

struct AnyCopy {
  std::size_t bytes;
  std::size_t size() const noexcept { return bytes; }
  void operator()(std::byte* to, const std::byte* from) const noexcept { std::memcpy(to, from, bytes); }
};

template <typename Copy>
void gather_small(const std::byte* rows, std::span<const std::uint64_t> indices, std::byte* destination,
                  Copy copy) noexcept {
  const std::size_t bytes = copy.size();
  const std::size_t fetched = std::min(bytes, kPrefetchBytes);
  const std::size_t ahead = std::clamp<std::size_t>(kAheadBytes / bytes, 2, 64);
  const std::size_t count = indices.size();
  const std::size_t steady = count - std::min(count, ahead);
  for (std::size_t i = 0; i < std::min(ahead, count); ++i) prefetch(rows + indices[i] * bytes, fetched);
  for (std::size_t i = 0; i < steady; ++i) {
    prefetch(rows + indices[i + ahead] * bytes, fetched);
    copy(destination + i * bytes, rows + indices[i] * bytes);
  }
  for (std::size_t i = steady; i < count; ++i) copy(destination + i * bytes, rows + indices[i] * bytes);
}

void gather_large(const std::byte* rows, std::size_t bytes, std::span<const std::uint64_t> indices,
                  std::byte* destination, StoreKind stores) noexcept {
  for_each_run(indices, bytes, [&](std::uint64_t first, std::size_t count, std::size_t offset) {
    const std::size_t next = offset / bytes + count;
    if (next < indices.size()) prefetch(rows + indices[next] * bytes, kPrefetchBytes);
    copy_bytes(destination + offset, rows + first * bytes, count * bytes, stores);
  });
}

}  // namespace

void gather_rows(const std::byte* rows, std::size_t row_bytes, std::span<const std::uint64_t> indices,
                 std::byte* destination, StoreKind stores) noexcept {
  if (row_bytes >= kLargeRow) return gather_large(rows, row_bytes, indices, destination, stores);
  switch (row_bytes) {
    case 1:
      return gather_small(rows, indices, destination, FixedCopy<1>{});
    case 2:
      return gather_small(rows, indices, destination, FixedCopy<2>{});
    case 4:
      return gather_small(rows, indices, destination, FixedCopy<4>{});
    case 8:
      return gather_small(rows, indices, destination, FixedCopy<8>{});
    case 16:
      return gather_small(rows, indices, destination, FixedCopy<16>{});
    case 32:
      return gather_small(rows, indices, destination, FixedCopy<32>{});
    case 64:
      return gather_small(rows, indices, destination, FixedCopy<64>{});
    case 128:
      return gather_small(rows, indices, destination, FixedCopy<128>{});
    case 256:
      return gather_small(rows, indices, destination, FixedCopy<256>{});
    default:
      return gather_small(rows, indices, destination, AnyCopy{row_bytes});
  }
}

std::size_t rows_of_piece(std::size_t rows, std::size_t row_bytes, std::size_t threads) noexcept {
  const std::size_t most = std::clamp<std::size_t>(kMostPieceBytes / row_bytes, 1, kMostPieceRows);
  const std::size_t least = std::clamp<std::size_t>(kLeastPieceBytes / row_bytes, 1, kLeastPieceRows);
  return std::clamp(rows / (kPiecesAThread * threads), least, most);
}

}  // namespace penstock
