#include "doctor/timeline/alike_steps.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

// A mark is what one, two or four kinds in a row hash to. Where the same mark comes again, a step may begin.
// Marks that come evenly all over the recording are tried, and the segments between them are compared as sets
// with one of them. A layer's kernels come evenly, too, but not over what follows the last layer.

namespace penstock {

namespace {

constexpr std::size_t kLeastMarks = 5;
constexpr std::size_t kMarks = std::size_t{1} << 16;
constexpr std::array<std::size_t, 3> kWindows{1, 2, 4};
constexpr std::size_t kMostTried = 64;
constexpr std::size_t kAsEven = 3;     ///< marks that are tried of those that come about as often
constexpr std::size_t kSmallStep = 8;  ///< items
constexpr std::size_t kRarelyStrange = 200;
constexpr std::size_t kSequence = 6;  ///< items whose order is compared
constexpr std::size_t kPairs = 8;     ///< of segments whose order is compared

std::uint64_t hash_of_kinds(std::span<const StepItem> items) {
  std::uint64_t hash = 0;
  for (const StepItem& item : items) hash = (std::rotl(hash, 23) ^ item.kind) * 0x9E3779B97F4A7C15u;
  return hash;
}

/// By the first of the items that it is of.
std::vector<std::uint16_t> marks_of(std::span<const StepItem> items, std::size_t window) {
  std::vector<std::uint16_t> marks;
  marks.reserve(items.size());
  for (std::size_t i = 0; i + window <= items.size(); ++i)
    marks.push_back(static_cast<std::uint16_t>(hash_of_kinds(items.subspan(i, window)) >> 48));
  return marks;
}

struct Mark {
  std::uint16_t value = 0;
  std::size_t window = 0;  ///< index in kWindows
  std::size_t count = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  double squares = 0;  ///< sum over the distances

  /// Mean square of the distances, by the square of their mean.
  [[nodiscard]] double unevenness() const {
    const auto span = static_cast<double>(last - first);
    return squares * static_cast<double>(count - 1) / (span * span);
  }
};

using MarksOfWindows = std::array<std::vector<std::uint16_t>, kWindows.size()>;

std::vector<Mark> count_marks(const MarksOfWindows& values, std::size_t window) {
  std::vector<Mark> marks(kMarks);
  for (std::size_t i = 0; i < values[window].size(); ++i) {
    Mark& mark = marks[values[window][i]];
    if (mark.count++ == 0) {
      mark.value = values[window][i];
      mark.window = window;
      mark.first = i;
    } else {
      const auto distance = static_cast<double>(i - mark.last);
      mark.squares += distance * distance;
    }
    mark.last = i;
  }
  return marks;
}

/// Those that come over half of the items at least, the evenest first. Of those that come about as often, the
/// evenest are enough.
std::vector<Mark> even_marks(const MarksOfWindows& values) {
  std::map<int, std::vector<Mark>> by_count;
  for (std::size_t window = 0; window < kWindows.size(); ++window) {
    for (const Mark& mark : count_marks(values, window)) {
      if (mark.count < kLeastMarks || 2 * (mark.last - mark.first) < values[window].size()) continue;
      by_count[static_cast<int>(8 * std::log2(static_cast<double>(mark.count)))].push_back(mark);
    }
  }
  const auto evenest_first = [](const Mark& mark) {
    return std::tuple(mark.unevenness(), mark.window, mark.first);
  };
  std::vector<Mark> even;
  for (auto& [count, marks] : by_count) {
    std::ranges::sort(marks, {}, evenest_first);
    even.insert(even.end(), marks.begin(),
                marks.begin() + static_cast<std::ptrdiff_t>(std::min(marks.size(), kAsEven)));
  }
  std::ranges::sort(even, {}, evenest_first);
  even.resize(std::min(even.size(), kMostTried));
  return even;
}

enum class Likeness : std::uint8_t {
  alike,
  /// All of it and more of the same kinds: a validation, or a step whose mark is missing. Or as much, with
  /// other kernels for other sizes.
  related,
  strange,
};

/// A segment that others are compared with, whatever their order.
class Pattern {
 public:
  Pattern(std::span<const StepItem> items, std::size_t kinds) : size_(items.size()), counts_(kinds) {
    for (const StepItem& item : items) ++counts_[item.kind];
    left_ = counts_;
    has_kernels_ = std::ranges::any_of(items, [](const StepItem& item) { return item.kind >= kFirstKernel; });
  }

  [[nodiscard]] bool has_kernels() const { return has_kernels_; }

  [[nodiscard]] Likeness likeness(std::span<const StepItem> items) {
    std::size_t common = 0;
    std::size_t unknown = 0;
    bool has_input = false;
    for (const StepItem& item : items) {
      has_input = has_input || item.kind == kCopiesToDevice;
      if (left_[item.kind] > 0) {
        --left_[item.kind];
        ++common;
      } else if (counts_[item.kind] == 0 && item.kind != kCopiesToHost) {
        ++unknown;
      }
    }
    for (const StepItem& item : items) left_[item.kind] = counts_[item.kind];
    if (has_input != (counts_[kCopiesToDevice] > 0)) return Likeness::strange;
    const std::size_t larger = std::max(size_, items.size());
    if (10 * common >= 9 * larger) return Likeness::alike;
    const bool is_step = has_input || size_ >= kSmallStep;
    const bool is_longer = 10 * common >= 9 * size_ && 5 * unknown <= items.size() - common;
    const bool is_as_long = 10 * std::min(size_, items.size()) >= 9 * larger && 3 * common >= 2 * larger;
    return is_step && (is_longer || is_as_long) ? Likeness::related : Likeness::strange;
  }

 private:
  std::size_t size_;
  std::vector<std::uint32_t> counts_;  ///< by kind
  std::vector<std::uint32_t> left_;    ///< of these, the ones that are not matched yet
  bool has_kernels_ = false;
};

/// Segments of the items, from each of `begins` up to the next.
struct Segments {
  std::vector<std::size_t> begins;
  std::size_t alike = 0;
  std::size_t strange = 0;

  [[nodiscard]] std::size_t size() const { return begins.size() - 1; }
  [[nodiscard]] bool are_hardly_strange() const {
    const bool are_small = begins.back() - begins.front() < kSmallStep * size();
    return strange == 0 || (!are_small && kRarelyStrange * strange <= size());
  }
};

std::span<const StepItem> segment_at(std::span<const StepItem> items, const std::vector<std::size_t>& begins,
                                     std::size_t index) {
  return items.subspan(begins[index], begins[index + 1] - begins[index]);
}

/// Of the segment whose length is in the middle.
Pattern middle_pattern(std::span<const StepItem> items, const std::vector<std::size_t>& begins,
                       std::size_t kinds) {
  std::vector<std::size_t> order(begins.size() - 1);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  std::ranges::nth_element(order, middle, {}, [&begins](std::size_t i) { return begins[i + 1] - begins[i]; });
  return {segment_at(items, begins, *middle), kinds};
}

/// The segments that `mark` makes, from the first to the last that is alike; nullopt if they are no steps.
std::optional<Segments> segments_of(std::span<const StepItem> items, const std::vector<std::uint16_t>& values,
                                    const Mark& mark, std::size_t kinds) {
  std::vector<std::size_t> begins;
  for (std::size_t i = mark.first; i <= mark.last; ++i) {
    if (values[i] == mark.value) begins.push_back(i);
  }
  Pattern pattern = middle_pattern(items, begins, kinds);
  if (!pattern.has_kernels()) return std::nullopt;
  std::vector<Likeness> likeness;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    likeness.push_back(pattern.likeness(segment_at(items, begins, i)));
  const auto first = std::ranges::find(likeness, Likeness::alike);
  const auto last = std::find(likeness.rbegin(), likeness.rend(), Likeness::alike).base();
  Segments segments;
  segments.begins.assign(begins.begin() + (first - likeness.begin()),
                         begins.begin() + (last - likeness.begin()) + 1);
  segments.alike = static_cast<std::size_t>(std::count(first, last, Likeness::alike));
  segments.strange = static_cast<std::size_t>(std::count(first, last, Likeness::strange));
  const bool are_alike = 3 * segments.alike >= 2 * segments.size() && segments.are_hardly_strange();
  const bool are_most = 2 * (segments.begins.back() - segments.begins.front()) >= items.size();
  if (!are_alike || !are_most || segments.size() + 1 < kLeastMarks) return std::nullopt;
  return segments;
}

/// False for long segments of random work, which have as many of each kind.
bool are_in_order(std::span<const StepItem> items, const Segments& segments) {
  const auto sequences_of = [&](std::size_t segment) {
    std::vector<std::uint64_t> sequences;
    for (std::size_t i = segments.begins[segment]; i < segments.begins[segment + 1]; ++i)
      sequences.push_back(hash_of_kinds(items.subspan(i, std::min(kSequence, items.size() - i))));
    std::ranges::sort(sequences);
    return sequences;
  };
  const std::size_t stride = std::max<std::size_t>(2, segments.size() / kPairs);
  std::size_t all = 0;
  std::vector<std::uint64_t> common;
  for (std::size_t i = 0; i + 1 < segments.size(); i += stride) {
    const std::vector<std::uint64_t> first = sequences_of(i);
    const std::vector<std::uint64_t> second = sequences_of(i + 1);
    std::ranges::set_intersection(first, second, std::back_inserter(common));
    all += std::min(first.size(), second.size());
  }
  return 3 * common.size() >= all;
}

/// Steps begin with the item before which the device idles longest, by the sum over all of them.
std::vector<std::size_t> begin_with_idle_time(std::span<const StepItem> items, const Segments& segments,
                                              std::size_t kinds) {
  struct Idle {
    TraceTime time = 0;
    std::size_t count = 0;
  };
  // By the kind, and by how many of that kind come before it in its segment.
  using Place = std::uint64_t;
  std::unordered_map<Place, Idle> idle;
  std::vector<std::uint32_t> seen(kinds);
  const auto for_places = [&](std::size_t segment, const auto& visit) {
    const std::size_t end = segments.begins[segment + 1];
    for (std::size_t i = segments.begins[segment]; i < end; ++i)
      visit(i, Place{items[i].kind} << 32 | seen[items[i].kind]++);
    for (std::size_t i = segments.begins[segment]; i < end; ++i) seen[items[i].kind] = 0;
  };
  for (std::size_t segment = 0; segment < segments.size(); ++segment) {
    for_places(segment, [&](std::size_t i, Place place) {
      Idle& at = idle[place];
      if (i > 0) at.time += std::max<TraceTime>(0, items[i].time.begin - items[i - 1].time.end);
      ++at.count;
    });
  }
  Place longest = 0;
  TraceTime time = -1;
  for (const auto& [place, at] : idle) {
    if (10 * at.count < 9 * segments.size() || std::pair(at.time, longest) <= std::pair(time, place))
      continue;
    longest = place;
    time = at.time;
  }
  std::vector<std::size_t> begins;
  for (std::size_t segment = 0; segment < segments.size(); ++segment) {
    std::size_t begin = segments.begins[segment];
    for_places(segment, [&](std::size_t i, Place place) {
      if (place == longest) begin = i;
    });
    begins.push_back(begin);
  }
  return begins;
}

}  // namespace

std::vector<std::size_t> find_alike_steps(std::span<const StepItem> items, std::size_t known) {
  std::size_t kinds = kFirstKernel;
  for (const StepItem& item : items) kinds = std::max<std::size_t>(kinds, item.kind + 1);
  MarksOfWindows values;
  for (std::size_t i = 0; i < kWindows.size(); ++i) values[i] = marks_of(items, kWindows[i]);
  std::optional<Segments> best;
  for (const Mark& mark : even_marks(values)) {
    std::optional<Segments> segments = segments_of(items, values[mark.window], mark, kinds);
    if (!segments) continue;
    const std::size_t most = best ? best->alike : known;
    if (segments->alike > most && are_in_order(items, *segments)) best = std::move(segments);
  }
  return best ? begin_with_idle_time(items, *best, kinds) : std::vector<std::size_t>{};
}

}  // namespace penstock
