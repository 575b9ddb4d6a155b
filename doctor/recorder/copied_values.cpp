// Bytes that became float32 lie on a grid of 256 levels: x / 255, (x - mean) / deviation, and so on. Channels
// that are normalized by themselves have a grid each. Pieces of the sample are put on grids, one after the
// other. Of other data, not even the values of one piece are on a grid, so that it costs next to nothing.

#include "copied_values.hpp"

#include <bit>
#include <bitset>
#include <cmath>
#include <cstring>
#include <span>

namespace penstock::recorder {

namespace {

using recording::kSamplePieces;

constexpr std::size_t kPieceWords = kPieceBytes / sizeof(float);
constexpr int kLevels = 256;
constexpr float kOffGrid = 1.0F / 64;  // of the distance of two levels
constexpr float kOffGridFarAway = 1.0F / 16;
constexpr float kFarAway = 1 << 20;          // levels
constexpr std::ptrdiff_t kFewestOfGrid = 8;  // values of a piece, or it may be on any grid
constexpr std::size_t kFewestValues = 32;
constexpr std::size_t kMostZeros = kSampleWords / 8 * 7;
constexpr std::size_t kMostSameHalves = kSampleWords / 8;
constexpr std::size_t kMostGrids = 4;     // of channels
constexpr std::size_t kSideBySide = 3;    // channels
constexpr std::size_t kFewestOnGrid = 3;  // pieces
constexpr std::size_t kMostMixed = 2;     // pieces in which one channel ends and the next begins

// Bits of a float32 without its sign.
constexpr std::int32_t kNoSign = 0x7FFFFFFF;
constexpr std::int32_t kLeast = 0x35800000;      // 2^-20
constexpr std::int32_t kMost = 0x49800000;       // 2^20
constexpr std::int32_t kLeastHalf = 0x38800000;  // 2^-14: below, float16 has fewer bits
constexpr std::int32_t kMostHalf = 0x47800000;   // 2^16
constexpr std::uint32_t kNotOfFloat16 = 0x1FFF;
constexpr std::uint32_t kNotOfBfloat16 = 0xFFFF;

using Words = std::span<const std::uint32_t, kPieceWords>;
using Floats = std::span<const float, kPieceWords>;

Words piece_of(const Sample& sample, std::size_t piece) noexcept {
  return Words(sample + piece * kPieceWords, kPieceWords);
}

/// True if all words are zero or floats with sizes from `least` up to and without `most`.
bool are_between(const Sample& sample, std::int32_t least, std::int32_t most) noexcept {
  for (std::size_t piece = 0; piece < kSamplePieces; ++piece) {
    std::int32_t others = 0;
    for (const std::uint32_t word : piece_of(sample, piece)) {
      const auto size = static_cast<std::int32_t>(word & kNoSign);
      others |=
          static_cast<std::int32_t>(size != 0) & static_cast<std::int32_t>(size < least || size >= most);
    }
    if (others != 0) return false;
  }
  return true;
}

/// True if float16 or bfloat16 holds them.
bool are_halves(const Sample& sample) noexcept {
  std::uint32_t bits = 0;
  for (const std::uint32_t word : sample) bits |= word;
  if ((bits & kNotOfBfloat16) == 0) return true;
  return (bits & kNotOfFloat16) == 0 && are_between(sample, kLeastHalf, kMostHalf);
}

/// False for narrower values side by side, and for float64, of which every second word may be zero. Nor are
/// few values enough.
bool can_be_float32(const Sample& sample) noexcept {
  std::size_t zeros[2] = {};  // at even and at odd places
  std::size_t same_halves = 0;
  std::uint64_t seen = 0;  // a bit stands for many values
  for (std::size_t i = 0; i < kSampleWords; ++i) {
    const std::uint32_t word = sample[i];
    zeros[i % 2] += word == 0 ? 1 : 0;
    same_halves += word != 0 && word >> 16U == (word & 0xFFFFU) ? 1 : 0;
    seen |= std::uint64_t{1} << (word * 0x9E3779B1U >> 26U);
  }
  return zeros[0] + zeros[1] <= kMostZeros && std::max(zeros[0], zeros[1]) < kSampleWords / 2 &&
         same_halves <= kMostSameHalves && static_cast<std::size_t>(std::popcount(seen)) >= kFewestValues;
}

/// Levels at equal distances. They are numbered from that of the origin on.
struct Grid {
  float origin = 0;
  float levels_per_unit = 0;
  int lowest = 0;
  int highest = 0;
};

/// Zeros are on all grids: they may be a border. False if a value is on none of the levels that the grid can
/// still have, because it has kLevels at most. Otherwise the grid has those of all values.
bool put_on(Grid& grid, std::span<const float> values) noexcept {
  constexpr std::size_t kAtOnce = 8;
  int lowest = grid.lowest;
  int highest = grid.highest;
  for (std::size_t first = 0; first < values.size(); first += kAtOnce) {
    int others = 0;
    for (const float value : values.subspan(first, std::min(kAtOnce, values.size() - first))) {
      const float at = value == 0 ? 0 : (value - grid.origin) * grid.levels_per_unit;
      const float within = at > -kLevels && at < kLevels ? at : 0;
      const int level = static_cast<int>(within + (kLevels + 0.5F)) - kLevels;
      const float off = at - static_cast<float>(level);
      others |= static_cast<int>(off > kOffGrid) | static_cast<int>(off < -kOffGrid);
      lowest = std::min(lowest, level);
      highest = std::max(highest, level);
    }
    if (others != 0 || highest - lowest >= kLevels) return false;
  }
  grid.lowest = lowest;
  grid.highest = highest;
  return true;
}

/// The values of a piece but zero, each once and in order.
struct SortedValues {
  explicit SortedValues(Floats piece) noexcept {
    end = std::copy_if(piece.begin(), piece.end(), values, [](float value) { return value != 0; });
    std::sort(values, end);
    end = std::unique(values, end);
  }
  [[nodiscard]] bool are_enough() const noexcept { return end - values >= kFewestOfGrid; }

  float values[kPieceWords];
  float* end;
};

/// The coarsest grid that all of them are on.
bool find_grid(const SortedValues& sorted, Grid& grid) noexcept {
  const float range = sorted.end[-1] - sorted.values[0];
  float gap = range;
  for (const float* value = sorted.values + 1; value < sorted.end; ++value)
    gap = std::min(gap, value[0] - value[-1]);
  if (range >= gap * kLevels) return false;
  for (int levels = static_cast<int>(range / gap); levels < kLevels; ++levels) {
    grid = {sorted.values[0], static_cast<float>(levels) / range, 0, 0};
    if (put_on(grid, {sorted.values, sorted.end})) return true;
  }
  return false;
}

/// True if the grid would have the value as a level if it went on for ever.
bool leads_to(const Grid& grid, float value) noexcept {
  const float at = (value - grid.origin) * grid.levels_per_unit;
  if (!(std::abs(at) < kFarAway)) return false;
  const float off = std::abs(at - static_cast<float>(static_cast<int>(at)));
  return off < kOffGridFarAway || off > 1 - kOffGridFarAway;
}

/// True if one of the two has the levels of the other, so that together they may have more than kLevels.
bool are_one(const Grid& first, const Grid& second) noexcept {
  const auto leads_to_all = [](const Grid& from, const Grid& to) {
    constexpr int kSome = 15;
    for (int level = 0; level < kLevels; level += kSome) {
      if (!leads_to(from, to.origin + static_cast<float>(level) / to.levels_per_unit)) return false;
    }
    return true;
  };
  return leads_to_all(first, second) || leads_to_all(second, first);
}

/// Puts the pieces of a sample on grids, one for each channel.
class Grids {
 public:
  explicit Grids(const Sample& sample) noexcept { std::memcpy(values_, sample, sizeof values_); }

  /// True if all values are on grids. The pieces are mostly of one channel each.
  bool hold_all() noexcept {
    for (std::size_t i = 0; i < kSamplePieces; ++i) {
      if (!add_grid(i)) return false;
    }
    for (std::size_t i = 0; i < kSamplePieces; ++i) {
      if (!on_grid_[i] && !is_on_any(piece(i))) return false;
    }
    return !are_empty();
  }
  [[nodiscard]] bool are_empty() const noexcept { return found_ == 0; }

 private:
  using Pieces = std::bitset<kSamplePieces>;

  [[nodiscard]] Floats piece(std::size_t i) const noexcept {
    return Floats(values_ + i * kPieceWords, kPieceWords);
  }

  /// That of a piece, with all later pieces that are on it. False if the piece tells that there is none.
  bool add_grid(std::size_t first) noexcept {
    if (on_grid_[first]) return true;
    const SortedValues sorted(piece(first));
    if (!sorted.are_enough()) return true;
    Grid grid;
    if (found_ == kMostGrids || !find_grid(sorted, grid) || !put_pieces_on(grid, first))
      return found_ > 0 && ++mixed_ <= kMostMixed;
    if (std::any_of(grids_, grids_ + found_, [&grid](const Grid& other) { return are_one(grid, other); }))
      return false;
    grids_[found_++] = grid;
    return true;
  }

  /// Those of few values would fit others' grids, too. False if there are too few on it.
  bool put_pieces_on(Grid& grid, std::size_t first) noexcept {
    Pieces on_it;
    for (std::size_t i = first; i < kSamplePieces; ++i)
      on_it[i] = !on_grid_[i] && changes_often(piece(i)) && put_on(grid, piece(i));
    if (on_it.count() < kFewestOnGrid) return false;
    on_grid_ |= on_it;
    return true;
  }

  static bool changes_often(Floats piece) noexcept {
    int changes = 0;
    for (std::size_t i = 1; i < kPieceWords; ++i) changes += piece[i] != piece[i - 1] ? 1 : 0;
    return changes >= kFewestOfGrid;
  }

  bool is_on_any(Floats piece) noexcept {
    return std::all_of(piece.begin(), piece.end(), [this](const float& value) {
      return std::any_of(grids_, grids_ + found_, [&value](Grid& grid) { return put_on(grid, {&value, 1}); });
    });
  }

  float values_[kSampleWords];
  Grid grids_[kMostGrids];
  std::size_t found_ = 0;
  std::size_t mixed_ = 0;
  Pieces on_grid_;
};

/// Channels that lie side by side become planes.
void sort_by_channel(const Sample& sample, std::uint64_t bytes, Sample& sorted) noexcept {
  std::size_t count = 0;
  for (std::size_t channel = 0; channel < kSideBySide; ++channel) {
    for (std::size_t piece = 0; piece < kSamplePieces; ++piece) {
      const std::size_t first = piece_begin(bytes, piece) / sizeof(float) % kSideBySide;
      for (std::size_t i = (channel + kSideBySide - first) % kSideBySide; i < kPieceWords; i += kSideBySide)
        sorted[count++] = sample[piece * kPieceWords + i];
    }
  }
}

bool are_bytes(const Sample& sample, std::uint64_t bytes) noexcept {
  Grids grids(sample);
  if (grids.hold_all()) return true;
  if (!grids.are_empty() || bytes / sizeof(float) % kSideBySide != 0) return false;
  Sample sorted;
  sort_by_channel(sample, bytes, sorted);
  return Grids(sorted).hold_all();
}

}  // namespace

CopiedValues judge_values(const Sample& sample, std::uint64_t bytes) noexcept {
  if (bytes % sizeof(float) != 0 || !are_between(sample, kLeast, kMost)) return CopiedValues::as_sent;
  CopiedValues values = CopiedValues::as_sent;
  if (are_halves(sample)) values = CopiedValues::halves;
  if (are_bytes(sample, bytes)) values = CopiedValues::bytes;
  return values == CopiedValues::as_sent || can_be_float32(sample) ? values : CopiedValues::as_sent;
}

}  // namespace penstock::recorder
