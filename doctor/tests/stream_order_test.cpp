#include "doctor/rules/stream_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

namespace penstock {
namespace {

constexpr TraceTime kAlways = std::numeric_limits<TraceTime>::min();

void add_copy(Timeline& timeline, TimeSpan time, std::uint32_t stream, std::uint16_t device = 0) {
  TimelineCopy copy;
  copy.time = time;
  copy.stream = stream;
  copy.device = device;
  timeline.copies.push_back(copy);
}

/// All copies of device 0 for which `is_asked` says so.
template <typename Test>
std::vector<ViewedCopy> copies_of(const Timeline& timeline, const Test& is_asked) {
  std::vector<ViewedCopy> copies;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device == 0 && is_asked()) copies.push_back({&copy, nullptr, nullptr});
  }
  return copies;
}

/// What the answer means, word by word: all that a stream runs, looked through for each copy.
std::optional<TraceTime> naive_ready(const Timeline& timeline, const TimelineCopy& copy) {
  struct Item {
    TimeSpan time;
    bool is_kernel;
  };
  std::vector<Item> items;
  for (const TimelineCopy& other : timeline.copies) {
    if (other.device == copy.device && other.stream == copy.stream) items.push_back({other.time, false});
  }
  for (const TimelineWork& work : timeline.work) {
    if (work.device == copy.device && work.stream == copy.stream) items.push_back({work.time, true});
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.time.begin, a.time.end) < std::tie(b.time.begin, b.time.end);
  });
  TraceTime ready = kAlways;
  for (const Item& item : items) {
    if (item.time.begin < copy.time.begin) ready = item.time.end;
  }
  for (const Item& item : items) {
    if (item.time.begin >= copy.time.end) return item.is_kernel ? std::optional(ready) : std::nullopt;
  }
  return std::nullopt;
}

// Times are so few that beginnings and ends meet, copies overlap, and some take no time.
TEST(StreamOrder, IsThatOfALookAtEachStream) {
  std::mt19937 random(1);
  const auto below = [&random](std::uint32_t count) { return static_cast<std::uint32_t>(random() % count); };
  std::array<std::size_t, 2> seen{};
  for (int round = 0; round < 3000; ++round) {
    Timeline timeline;
    const std::uint32_t count = below(40);
    for (std::uint32_t i = 0; i < count; ++i) {
      const TraceTime begin = below(40);
      const TimeSpan time{begin, begin + below(9)};
      const auto device = static_cast<std::uint16_t>(below(5) / 4);
      if (below(2) == 0) {
        add_copy(timeline, time, below(3), device);
      } else {
        timeline.work.push_back({time, below(3), device});
      }
    }
    sort_timeline(timeline);
    const auto copies = copies_of(timeline, [&below] { return below(3) > 0; });
    const auto ready = ready_before_kernels(timeline, 0, copies);
    ASSERT_EQ(ready.size(), copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      ASSERT_EQ(ready[i], naive_ready(timeline, *copies[i].copy)) << "round " << round << ", copy " << i;
      ++seen[ready[i] ? 1 : 0];
    }
  }
  EXPECT_GT(std::min(seen[0], seen[1]), 1000U) << "both answers occur";
}

}  // namespace
}  // namespace penstock
