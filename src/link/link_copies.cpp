#include "link/link_steps.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <cstdint>

namespace penstock {

namespace {

using Curve = LinkProfile::Curve;

constexpr double kLeastSeconds = 1e-9;

/// How one curve is measured: what to overwrite before, to repeat, and to compare afterwards.
struct CurveWork {
  std::function<void(std::size_t)> poison;
  std::function<void(std::size_t)> copy;
  std::function<void(std::size_t)> check;
};

CurveWork to_device(LinkRun& run, std::string_view name, std::function<void(std::size_t)> copy) {
  LinkBench& bench = run.bench;
  return {.poison = [&](std::size_t bytes) { bench.poison_device(bytes); },
          .copy = std::move(copy),
          .check = [&bench, name](std::size_t bytes) { bench.check_device(name, bytes); }};
}

CurveWork to_host(LinkRun& run, std::string_view name, std::byte* target, TransferPath path) {
  LinkBench& bench = run.bench;
  return {.poison = [&bench, target](std::size_t bytes) { bench.poison_host(target, bytes); },
          .copy =
              [&run, &bench, target, path](std::size_t bytes) {
                run.engine->copy(target, bench.device_source(), bytes, {.path = path}).synchronize();
              },
          .check = [&bench, name, target](std::size_t bytes) { bench.check_host(name, target, bytes); }};
}

CurveWork from_host(LinkRun& run, std::string_view name, const std::byte* source, TransferPath path) {
  return to_device(run, name, [&run, source, path](std::size_t bytes) {
    run.engine->copy(run.bench.device_target(), source, bytes, {.path = path, .whole = true}).synchronize();
  });
}

CurveWork work_of(LinkRun& run, Curve curve) {
  const LinkBench& bench = run.bench;
  const std::string_view name = curve_name(curve);
  switch (curve) {
    case Curve::pinned_h2d:
      return from_host(run, name, bench.pinned_source(), TransferPath::direct);
    case Curve::pinned_d2h:
      return to_host(run, name, bench.pinned_target(), TransferPath::direct);
    case Curve::pageable_h2d:
      return from_host(run, name, bench.pageable_source(), TransferPath::direct);
    case Curve::pageable_d2h:
      return to_host(run, name, bench.pageable_target(), TransferPath::direct);
    case Curve::staged_h2d:
      return from_host(run, name, bench.pageable_source(), TransferPath::staged);
    case Curve::staged_d2h:
      return to_host(run, name, bench.pageable_target(), TransferPath::staged);
    case Curve::device_d2d:
      break;
  }
  return from_host(run, name, bench.device_source(), TransferPath::direct);
}

/// Pieces that lie like a program's arrays: apart on the host, side by side on the device.
struct Pieces {
  std::vector<TransferPiece> pieces;
  std::vector<std::size_t> host_offsets;
  PackedLayout layout;
};

std::size_t host_stride(std::size_t pieces, std::size_t each) { return pieces == 1 ? each : each + 192; }

bool fits(const LinkBench& bench, std::size_t pieces, std::size_t each) {
  return pieces * host_stride(pieces, each) <= bench.capacity() &&
         pieces * align_up(each, 256) <= bench.capacity();
}

Pieces lay_out(const LinkBench& bench, std::size_t count, std::size_t each, CopyDirection direction) {
  const std::vector<std::size_t> sizes(count, each);
  Pieces result{.pieces = {}, .host_offsets = {}, .layout = PackedLayout::of(sizes)};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * host_stride(count, each);
    const std::size_t there = result.layout.offsets[i];
    result.host_offsets.push_back(at);
    result.pieces.push_back(
        direction == CopyDirection::h2d
            ? TransferPiece{bench.pageable_source() + at, bench.device_target() + there, each}
            : TransferPiece{bench.device_source() + there, bench.pageable_target() + at, each});
  }
  return result;
}

void check_pieces(LinkBench& bench, std::string_view name, const Pieces& laid, CopyDirection direction) {
  const bool h2d = direction == CopyDirection::h2d;
  if (h2d) bench.read_back(laid.layout.bytes);
  for (std::size_t i = 0; i < laid.pieces.size(); ++i) {
    const std::size_t host = laid.host_offsets[i];
    const std::size_t device = laid.layout.offsets[i];
    bench.check_host(name, h2d ? bench.pinned_target() + device : bench.pageable_target() + host,
                     laid.pieces[i].bytes, h2d ? host : device);
  }
}

std::vector<std::pair<std::size_t, std::size_t>> packed_grid(const LinkBench& bench) {
  constexpr std::size_t kLargestGrid = 64 * kMiB;
  const std::size_t step = bench.quick() ? 4 : 2;
  std::vector<std::pair<std::size_t, std::size_t>> grid;
  for (std::size_t pieces = 1; pieces <= 4096; pieces *= 4) {
    for (std::size_t each = 256; pieces * each <= kLargestGrid; each *= step) {
      if (fits(bench, pieces, each)) grid.emplace_back(pieces, each);
    }
  }
  return grid;
}

}  // namespace

void measure_curve(LinkRun& run, Curve curve) {
  const CurveWork work = work_of(run, curve);
  LinkSeries series{.name = std::string(curve_name(curve)), .points = {}};
  std::vector<LinkProfile::Point> points;
  const auto sizes = run.bench.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t bytes = sizes[i];
    work.poison(bytes);
    const Summary seconds = run.bench.repeat_timed(bytes, [&] { work.copy(bytes); });
    work.check(bytes);
    series.points.push_back({.bytes = bytes, .pieces = 1, .seconds = seconds});
    points.push_back({bytes, std::max(seconds.median, kLeastSeconds)});
    run.advance(static_cast<double>(i + 1) / static_cast<double>(sizes.size()));
  }
  run.result.series.push_back(std::move(series));
  run.result.profile.curves[curve] = std::move(points);
}

void measure_packed(LinkRun& run, CopyDirection direction) {
  const bool h2d = direction == CopyDirection::h2d;
  LinkBench& bench = run.bench;
  LinkSeries series{.name = h2d ? "packed_h2d" : "packed_d2h", .points = {}};
  auto& points = h2d ? run.result.profile.packed_h2d : run.result.profile.packed_d2h;
  points.clear();
  const auto grid = packed_grid(bench);
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const auto [count, each] = grid[i];
    const Pieces laid = lay_out(bench, count, each, direction);
    if (h2d) {
      bench.poison_device(laid.layout.bytes);
    } else {
      bench.poison_host(bench.pageable_target(), laid.host_offsets.back() + each);
    }
    const Summary seconds = bench.repeat_timed(count * each, [&] {
      run.engine->copy_pieces(laid.pieces, direction, {.path = TransferPath::packed}).synchronize();
    });
    check_pieces(bench, series.name, laid, direction);
    series.points.push_back({.bytes = count * each, .pieces = count, .seconds = seconds});
    points.push_back({count, count * each, std::max(seconds.median, kLeastSeconds)});
    run.advance(static_cast<double>(i + 1) / static_cast<double>(grid.size()));
  }
  run.result.series.push_back(std::move(series));
}

void measure_copy_interval(LinkRun& run) {
  constexpr std::size_t kSmall = 4 * kKiB;
  LinkBench& bench = run.bench;
  const std::size_t count = std::min<std::size_t>(256, bench.capacity() / kSmall);
  std::vector<TransferPiece> pieces;
  for (std::size_t i = 0; i < count; ++i) {
    pieces.push_back({bench.pinned_source() + i * kSmall, bench.device_target() + i * kSmall, kSmall});
  }
  bench.poison_device(count * kSmall);
  const Summary seconds = bench.repeat_timed(count * kSmall, [&] {
    run.engine->copy_pieces(pieces, CopyDirection::h2d, {.path = TransferPath::direct}).synchronize();
  });
  bench.check_device("small copies back to back", count * kSmall);
  run.result.profile.copy_interval = std::max(seconds.median / static_cast<double>(count), kLeastSeconds);
}

}  // namespace penstock
