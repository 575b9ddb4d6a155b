#pragma once

#include "doctor/rules/findings.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// A record, or neighbours that are too short together to be told apart.
struct ExcerptBar {
  TimeSpan time;          ///< not cut at the excerpt's window
  std::string_view kind;  ///< in words that live as long as the program: "kernel", "stream synchronization"
  std::size_t place = 0;  ///< of its call: index into the excerpt's places
  std::uint64_t count = 1;
  std::uint64_t bytes = 0;  ///< of all of them
  TraceTime busy = 0;       ///< their lengths together
  TraceTime longest = 0;    ///< the length of the one that gives `kind` and `place`
};

/// Bars that stand in one line, in the order of their beginnings. They may overlap.
struct ExcerptLane {
  std::string group;  ///< "GPU 0", "thread 3", "findings on GPU 0"
  std::string name;
  bool tiles = false;  ///< the bars leave no gaps
  std::vector<ExcerptBar> bars;
};

/// Some steps of a timeline, small enough for a picture.
struct TimelineExcerpt {
  TimeSpan window;
  std::vector<TimeSpan> steps;  ///< that it shows; empty: the recording marks none
  std::size_t first_step = 0;   ///< the number of the first of them
  std::vector<ExcerptLane> lanes;
  std::vector<std::string> places{""};  ///< functions and operators; the first stands for none
  TraceTime resolution = 0;             ///< records that are not longer than this together are one bar
  std::size_t devices_left_out = 0;
  std::size_t threads_left_out = 0;  ///< that launch kernels
};

struct ExcerptOptions {
  std::size_t steps = 3;
  std::size_t most_bars = 20'000;  ///< of all lanes, as far as there are fewer lanes
  std::size_t most_devices = 8;
  std::size_t most_threads = 4;
};

/// The steps in a row that show what the diagnosis says: those whose length, and whose time with each
/// finding's evidence, are nearest to the mean. If no steps are marked, a twentieth of the recording. Each
/// device has lanes for its account, kernels and copies, each thread that launches kernels for its loader
/// waits and calls, and each finding for its evidence. A pure function.
[[nodiscard]] TimelineExcerpt excerpt_timeline(const Timeline& timeline, const Diagnosis& diagnosis,
                                               const ExcerptOptions& options = {});

}  // namespace penstock
