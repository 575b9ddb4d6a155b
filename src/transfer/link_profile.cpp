#include "transfer/link_identity.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

/// How a profile predicts a time.
///
/// A single copy has one variable, its bytes, and a curve over it. A packed transfer has two, bytes and
/// pieces, and so has a batch that host threads gather. They have grids of rows, one for each number of
/// pieces; each row is a curve over bytes. Both are interpolated in logarithms, in which latency (flat) and
/// bandwidth (a slope of one) are straight lines.
namespace penstock {

namespace {

using Curve = LinkProfile::Curve;
using Point = LinkProfile::Point;
using GridPoint = LinkProfile::GridPoint;

double interpolate(double x, double x0, double y0, double x1, double y1) {
  return y0 * std::exp(std::log(y1 / y0) * (std::log(x / x0) / std::log(x1 / x0)));
}

/// Flat below the first point, in proportion past the last.
template <typename P>
double on_curve(std::span<const P> points, double bytes) {
  const auto after = std::find_if(points.begin(), points.end(),
                                  [&](const P& point) { return static_cast<double>(point.bytes) >= bytes; });
  if (after == points.begin()) return after->seconds;
  const P& before = *std::prev(after);
  if (after == points.end()) return before.seconds * (bytes / static_cast<double>(before.bytes));
  return interpolate(bytes, static_cast<double>(before.bytes), before.seconds,
                     static_cast<double>(after->bytes), after->seconds);
}

std::span<const Point> curve_of(const LinkProfile& profile, Curve curve) {
  const auto found = profile.curves.find(curve);
  if (found == profile.curves.end() || found->second.empty()) {
    throw InvalidArgument(fmt::format(
        "This link profile has no curve '{}'; measure the link with `penstock link`.", curve_name(curve)));
  }
  return found->second;
}

double seconds_of(const LinkProfile& profile, Curve curve, double bytes) {
  return on_curve(curve_of(profile, curve), bytes);
}

CopyDirection direction_of(TransferKinds kinds) {
  if (is_host(kinds.source) && is_host(kinds.destination)) {
    throw InvalidArgument(
        fmt::format("A transfer from {} to {} memory does not cross a link; name device memory for one end.",
                    memory_kind_name(kinds.source), memory_kind_name(kinds.destination)));
  }
  if (kinds.destination != MemoryKind::device) return CopyDirection::d2h;
  return kinds.source == MemoryKind::device ? CopyDirection::d2d : CopyDirection::h2d;
}

bool is_pageable(TransferKinds kinds) {
  return kinds.source == MemoryKind::pageable || kinds.destination == MemoryKind::pageable;
}

Curve direct_curve(CopyDirection direction, bool pageable) {
  switch (direction) {
    case CopyDirection::h2d:
      return pageable ? Curve::pageable_h2d : Curve::pinned_h2d;
    case CopyDirection::d2h:
      return pageable ? Curve::pageable_d2h : Curve::pinned_d2h;
    case CopyDirection::d2d:
      break;
  }
  return Curve::device_d2d;
}

/// Seconds of copies one after another. Asynchronous ones overlap except for the interval between them.
double direct_seconds(const LinkProfile& profile, double bytes, double pieces, TransferKinds kinds) {
  const bool pageable = is_pageable(kinds);
  const auto points = curve_of(profile, direct_curve(direction_of(kinds), pageable));
  const double one = on_curve(points, bytes / pieces);
  const double overlap = pageable || profile.copy_interval <= 0
                             ? 0
                             : std::max(0.0, points.front().seconds - profile.copy_interval);
  return one + (pieces - 1) * (one - overlap);
}

/// The grid's points of equal `pieces` from `first` on.
std::span<const GridPoint> row_from(std::span<const GridPoint> grid, std::size_t first) {
  std::size_t last = first;
  while (last < grid.size() && grid[last].pieces == grid[first].pieces) ++last;
  return grid.subspan(first, last - first);
}

/// Past its largest size a row grows as staging does, since large pieces behave like staged copies.
double on_packed_row(const LinkProfile& profile, std::span<const GridPoint> row, Curve staged, double bytes) {
  const auto largest = static_cast<double>(row.back().bytes);
  if (bytes <= largest) return on_curve(row, bytes);
  return row.back().seconds * seconds_of(profile, staged, bytes) / seconds_of(profile, staged, largest);
}

/// `on_row` gives the seconds of any bytes in a row.
double on_grid(std::span<const GridPoint> grid, double bytes, double pieces,
               FunctionRef<double(std::span<const GridPoint>, double)> on_row) {
  auto row = row_from(grid, 0);
  auto below = row;
  while (static_cast<double>(row.front().pieces) < pieces) {
    const auto next = static_cast<std::size_t>(row.data() - grid.data()) + row.size();
    if (next == grid.size()) {
      // More pieces than in any row: the last row's pieces of this size, as often as needed.
      const double share = static_cast<double>(row.front().pieces) / pieces;
      return on_row(row, bytes * share) / share;
    }
    below = row;
    row = row_from(grid, next);
  }
  const double upper = on_row(row, bytes);
  if (below.data() == row.data()) return upper;
  return interpolate(pieces, static_cast<double>(below.front().pieces), on_row(below, bytes),
                     static_cast<double>(row.front().pieces), upper);
}

double packed_seconds(const LinkProfile& profile, double bytes, double pieces, CopyDirection direction) {
  const bool h2d = direction == CopyDirection::h2d;
  const std::span<const GridPoint> grid = h2d ? profile.packed_h2d : profile.packed_d2h;
  const Curve staged = h2d ? Curve::staged_h2d : Curve::staged_d2h;
  if (grid.empty()) {
    throw InvalidArgument(
        fmt::format("This link profile has no packed {} transfers; measure the link with `penstock link`.",
                    copy_direction_name(direction)));
  }
  return on_grid(grid, bytes, pieces, [&](std::span<const GridPoint> row, double some) {
    return on_packed_row(profile, row, staged, some);
  });
}

/// Seconds of one kernel that moves all pieces: a copy, after the table of pieces was copied.
double kernel_seconds(const LinkProfile& profile, double bytes) {
  const auto points = curve_of(profile, Curve::device_d2d);
  return points.front().seconds + on_curve(points, bytes);
}

}  // namespace

std::string_view curve_name(Curve curve) noexcept {
  switch (curve) {
    case Curve::pinned_h2d:
      return "pinned_h2d";
    case Curve::pinned_d2h:
      return "pinned_d2h";
    case Curve::pageable_h2d:
      return "pageable_h2d";
    case Curve::pageable_d2h:
      return "pageable_d2h";
    case Curve::staged_h2d:
      return "staged_h2d";
    case Curve::staged_d2h:
      return "staged_d2h";
    case Curve::device_d2d:
      return "device_d2d";
  }
  return "unknown";
}

std::string_view gather_name(LinkProfile::Gather gather) noexcept {
  switch (gather) {
    case LinkProfile::Gather::host:
      return "host";
    case LinkProfile::Gather::zero_copy:
      return "zero_copy";
    case LinkProfile::Gather::copy_engine:
      return "copy_engine";
  }
  return "unknown";
}

double LinkProfile::predict(std::size_t bytes, std::size_t pieces, TransferKinds kinds,
                            TransferPath path) const {
  const CopyDirection direction = direction_of(kinds);
  if (bytes == 0 || pieces == 0) return 0;
  if (path == TransferPath::automatic) path = choose_path(bytes, pieces, kinds);
  const auto size = static_cast<double>(bytes);
  const auto count = static_cast<double>(pieces);
  switch (path) {
    case TransferPath::staged:
      if (direction == CopyDirection::d2d || pieces > 1) {
        throw InvalidArgument(fmt::format("There is no staged path {}; ask for direct or packed.",
                                          pieces > 1 ? "for several pieces" : "within device memory"));
      }
      return seconds_of(*this, direction == CopyDirection::h2d ? Curve::staged_h2d : Curve::staged_d2h, size);
    case TransferPath::packed:
      return direction == CopyDirection::d2d ? kernel_seconds(*this, size)
                                             : packed_seconds(*this, size, count, direction);
    default:
      return direct_seconds(*this, size, count, kinds);
  }
}

TransferPath LinkProfile::choose_path(std::size_t bytes, std::size_t pieces, TransferKinds kinds) const {
  const bool pageable = is_pageable(kinds);
  (void)direction_of(kinds);
  if (pieces <= 1 && !pageable) return TransferPath::direct;
  // The driver's own copy of pageable memory blocks the host, so several of them are never faster.
  if (bytes == 0 || (pieces > 1 && pageable)) return TransferPath::packed;
  const TransferPath other = pieces > 1 ? TransferPath::direct : TransferPath::staged;
  if (other == TransferPath::staged && bytes > chunk_bytes) return TransferPath::staged;
  const bool pack =
      predict(bytes, pieces, kinds, TransferPath::packed) <= predict(bytes, pieces, kinds, other);
  return pack ? TransferPath::packed : other;
}

std::optional<double> LinkProfile::gather_seconds(Gather gather, std::size_t sample_bytes,
                                                  double samples) const {
  const auto size = static_cast<double>(sample_bytes);
  if (gather == Gather::host) {
    if (host_gathers.empty()) return std::nullopt;
    const auto on_row = [](std::span<const GridPoint> row, double bytes) { return on_curve(row, bytes); };
    return on_grid(host_gathers, size * samples, samples, on_row);
  }
  const auto found = gathers.find(gather);
  if (found == gathers.end() || found->second.empty()) return std::nullopt;
  return samples * on_curve(std::span<const Point>(found->second), size);
}

double LinkProfile::ceiling(CopyDirection direction) const {
  const auto found = curves.find(direct_curve(direction, false));
  double best = 0;
  if (found == curves.end()) return best;
  for (const Point& point : found->second) {
    best = std::max(best, static_cast<double>(point.bytes) / point.seconds);
  }
  return best;
}

LinkProfile LinkProfile::defaults(const DeviceInfo& device) {
  constexpr double kHostCopy = 6e9;  // by one thread
  const DeviceTuning& tuning = device.tuning;
  const double stated = device.link.theoretical_bytes_per_second();
  const double link = stated > 0 ? stated * tuning.usable_link_share : tuning.unstated_link_rate;

  LinkProfile profile;
  const HostTopology& topology = host_topology();
  profile.device_name = device.name;
  profile.device_uuid = link_identity(device);
  profile.driver = device.driver;
  profile.processor = topology.processor;
  profile.staging_threads = std::clamp(topology.processors - 1, 1u, tuning.staging_threads);
  profile.chunk_bytes = tuning.staged_chunks.front();
  profile.streaming_stores = false;
  profile.copy_interval = tuning.copy_interval;

  const auto line = [&](Curve curve, double latency, double rate) {
    auto& points = profile.curves[curve];
    for (std::size_t bytes = 4 * kKiB; bytes <= kGiB; bytes *= 2) {
      points.push_back({bytes, latency + static_cast<double>(bytes) / rate});
    }
  };
  const double staged = std::min(0.9 * link, profile.staging_threads * kHostCopy);
  line(Curve::pinned_h2d, tuning.copy_latency, link);
  line(Curve::pinned_d2h, tuning.copy_latency, link);
  line(Curve::pageable_h2d, 12e-6, std::min(link, kHostCopy));
  line(Curve::pageable_d2h, 16e-6, std::min(link, kHostCopy));
  line(Curve::staged_h2d, 60e-6, staged);
  line(Curve::staged_d2h, 60e-6, staged);
  line(Curve::device_d2d, tuning.copy_latency, tuning.device_copy_rate);

  const double packed = std::min(0.8 * link, kHostCopy);
  for (std::size_t pieces = 1; pieces <= 4096; pieces *= 4) {
    for (std::size_t bytes = 256 * pieces; bytes <= 64 * kMiB; bytes *= 4) {
      const double seconds =
          15e-6 + 0.1e-6 * static_cast<double>(pieces) + static_cast<double>(bytes) / packed;
      profile.packed_h2d.push_back({pieces, bytes, seconds});
      profile.packed_d2h.push_back({pieces, bytes, seconds + 10e-6});
    }
  }
  return profile;
}

}  // namespace penstock
