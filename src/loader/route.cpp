#include "loader/route.hpp"

#include "loader/sources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/narrow.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kAlignment = 256;
// A copy of a batch costs the host half a microsecond, in which a PCIe 5 link carries some 30 KiB; copies of
// 24 KiB and less take another way through the driver, several times as slow (docs/performance.md).
constexpr std::size_t kCopiedRowBytes = std::size_t{32} << 10;
// Less is not worth a copy of its own.
constexpr std::size_t kLeastLanding = std::size_t{64} << 10;
constexpr std::size_t kCheapToNarrow = std::size_t{512} << 20;
// Zero-copy takes no processor time, so host gather has to be this much quicker to be taken for its speed.
constexpr double kWorthProcessors = 2.0;

void apply(Route& route, const FieldOptions& options) {
  if (options.to) route.to = *options.to;
  const bool scaled = !options.scale.empty() || !options.shift.empty();
  if (!can_widen(route.stored.dtype, route.to)) {
    throw InvalidArgument(fmt::format(
        "Field '{}' is stored as {} and cannot be delivered as {}: uint8, int8, int16, uint16, float16, "
        "bfloat16 and float32 widen to float16, bfloat16 and float32, integers to wider integers.",
        route.stored.name, dtype_name(route.stored.dtype), dtype_name(route.to)));
  }
  if (scaled && !is_model_float(route.to)) {
    throw InvalidArgument(
        fmt::format("Field '{}' is delivered as {}, but scale and shift need float16, bfloat16 or "
                    "float32: name one of them.",
                    route.stored.name, dtype_name(route.to)));
  }
  route.factors = channel_factors(route.stored, options);
}

double last_rate(const LinkProfile& profile, LinkProfile::Curve curve) {
  const auto found = profile.curves.find(curve);
  if (found == profile.curves.end() || found->second.empty()) return 0;
  const LinkProfile::Point& point = found->second.back();
  return point.seconds > 0 ? static_cast<double>(point.bytes) / point.seconds : 0;
}

std::string why_host(const Route& route, const Dataset& dataset, const Device& device, std::size_t field,
                     GatherPath path, const LinkProfile& profile, const LoaderOptions& options) {
  const bool forced = is_forced(options.gather);
  const auto memory = dataset.memory(field);
  if (memory.empty()) return "its samples do not lie in memory side by side";
  const bool by_engine = path == GatherPath::copy_engine;
  if (!(forced && by_engine) && route.converts &&
      reinterpret_cast<std::uintptr_t>(memory.data()) % dtype_bytes(route.stored.dtype) != 0) {
    return "its values are not aligned to their type";
  }
  if (forced) return {};
  if (dataset.is_file_mapping(field)) return "its samples lie in a file that is mapped";
  if (is_small_part(dataset, field, device, options)) {
    return "it is a small part of an array, whose other parts share pages with it";
  }
  if (by_engine) return {};
  const double zero_copy = last_rate(profile, LinkProfile::Curve::zero_copy_h2d);
  const double pinned = last_rate(profile, LinkProfile::Curve::pinned_h2d);
  if (zero_copy > 0 && pinned > kWorthProcessors * zero_copy) {
    return fmt::format(
        "the link profile says that kernels read over the link at {:.1f} GB/s, copies at {:.1f}",
        zero_copy / kGB, pinned / kGB);
  }
  return {};
}

/// Sets `resident_rows` within `available` bytes; returns the bytes they take.
std::size_t choose_residency(std::vector<Route>& routes, const Residency& residency, std::size_t available) {
  using Kind = Residency::Kind;
  if (residency.kind == Kind::none) return 0;
  if (residency.kind == Kind::fraction && !(residency.fraction >= 0 && residency.fraction <= 1)) {
    throw InvalidArgument(
        fmt::format("A residency of {} was asked for; fractions go from 0 to 1.", residency.fraction));
  }
  std::vector<Route*> smallest_first;
  for (Route& route : routes) smallest_first.push_back(&route);
  std::ranges::sort(smallest_first, {},
                    [](const Route* route) { return std::pair(route->row_bytes, route); });
  std::size_t bytes = 0;
  for (Route* route : smallest_first) {
    const std::size_t left = available - std::min(available, bytes + kAlignment);
    switch (residency.kind) {
      case Kind::automatic:
        route->resident_rows = std::min<std::uint64_t>(route->rows, left / route->row_bytes);
        break;
      case Kind::fraction:
        route->resident_rows =
            static_cast<std::uint64_t>(std::floor(residency.fraction * static_cast<double>(route->rows)));
        break;
      default:
        route->resident_rows = route->rows;
    }
    route->resident_rows = std::min(route->resident_rows, route->rows);
    bytes += align_up(route->resident_rows * route->row_bytes, kAlignment);
  }
  if (bytes > available && residency.kind != Kind::automatic) {
    throw OutOfMemory(
        "the loader's device memory budget, beside its ring,", bytes, 0, available,
        "make less of the dataset resident (auto takes what fits), use smaller batches, or raise the "
        "budget");
  }
  return bytes;
}

/// Bytes of landing memory that the route is to have; 0 where none is of use.
std::size_t landing_bytes(const Route& route, std::size_t batch) noexcept {
  const bool needs_kernel = route.converts || route.resident_rows > 0;
  const bool wants =
      route.engine_copied() || (route.host_gathered() && batch * route.row_bytes >= kLeastLanding);
  return needs_kernel && wants ? kLoaderStreams * align_up(batch * route.row_bytes, kAlignment) : 0;
}

std::size_t landing_bytes(const std::vector<Route>& routes, std::size_t batch) noexcept {
  std::size_t bytes = 0;
  for (const Route& route : routes) bytes += landing_bytes(route, batch);
  return bytes;
}

void do_without_landing(Route& route) {
  route.lands = false;
  if (!route.engine_copied()) return;
  route.path = route.without_landing;
  route.reason = route.without_landing_reason;
}

}  // namespace

bool is_forced(GatherPath asked) noexcept {
  return asked == GatherPath::zero_copy || asked == GatherPath::copy_engine;
}

std::string Route::describe() const {
  std::string text =
      fmt::format("{}: {} {}", stored.name, dtype_name(stored.dtype), format_shape(stored.shape));
  if (stored.narrowed_from) text += fmt::format(" (narrowed from {})", dtype_name(*stored.narrowed_from));
  if (!streams()) {
    text += ", resident";
  } else {
    if (resident_rows > 0) {
      text += fmt::format(", {:.0f} % resident",
                          100.0 * static_cast<double>(resident_rows) / static_cast<double>(rows));
    }
    text += fmt::format(", {} gather", gather_path_name(path));
    if (!reason.empty()) text += fmt::format(" ({})", reason);
  }
  if (to != stored.dtype || !factors.scale.empty() || !factors.shift.empty()) {
    text += fmt::format(", delivered as {}", dtype_name(to));
    if (!factors.scale.empty() || !factors.shift.empty())
      text += factors.channels == 1 ? std::string(", scaled")
                                    : fmt::format(", scaled by channel ({})", factors.channels);
  }
  return text;
}

std::vector<Route> make_routes(const Dataset& dataset, const LoaderOptions& options) {
  std::vector<Route> routes(dataset.field_count());
  for (std::size_t f = 0; f < routes.size(); ++f) {
    Route& route = routes[f];
    route.stored = dataset.field(f);
    route.to = route.stored.narrowed_from.value_or(route.stored.dtype);
    route.rows = dataset.sample_count();
    route.row_elements = element_count(route.stored.shape);
    route.row_bytes = dataset.sample_bytes(f);
  }
  for (std::size_t i = 0; i < options.fields.size(); ++i) {
    const FieldOptions& field = options.fields[i];
    for (std::size_t j = 0; j < i; ++j) {
      if (options.fields[j].name == field.name) {
        throw InvalidArgument(fmt::format("Field '{}' has options twice; give them once.", field.name));
      }
    }
    apply(routes[dataset.field_index(field.name)], field);
  }
  for (Route& route : routes) {
    route.delivered_bytes = route.row_elements * dtype_bytes(route.to);
    route.converts =
        route.to != route.stored.dtype || !route.factors.scale.empty() || !route.factors.shift.empty();
  }
  return routes;
}

std::size_t slot_bytes(const std::vector<Route>& routes, std::size_t batch) {
  std::size_t bytes = align_up(batch * sizeof(std::uint64_t), kAlignment);
  for (const Route& route : routes) {
    std::size_t field = 0;
    if (__builtin_mul_overflow(batch, route.delivered_bytes, &field) || field > std::size_t{1} << 60) {
      throw InvalidArgument(
          fmt::format("A batch of {} samples of field '{}' exceeds any memory; use a smaller batch.", batch,
                      route.stored.name));
    }
    bytes += align_up(field, kAlignment);
  }
  return bytes;
}

std::size_t factor_bytes(const std::vector<Route>& routes) noexcept {
  std::size_t factors = 0;
  for (const Route& route : routes) factors += route.factors.scale.size() + route.factors.shift.size();
  return align_up(factors * sizeof(float), kAlignment);
}

void choose_paths(std::vector<Route>& routes, const Dataset& dataset, const Device& device,
                  const LinkProfile& profile, const LoaderOptions& options) {
  const GatherPath asked = options.gather;
  const bool forced = is_forced(asked);
  // Samples that follow each other are one copy.
  const bool in_sequence = !options.shuffle && options.shard.world_size == 1;
  const bool engines = device.info().batched_copies && options.gather_blocks == 0;
  for (std::size_t f = 0; f < routes.size(); ++f) {
    Route& route = routes[f];
    const auto why_not = [&](GatherPath path) {
      return why_host(route, dataset, device, f, path, profile, options);
    };
    const bool by_engine = engines && (in_sequence || route.row_bytes >= kCopiedRowBytes);
    const GatherPath path = forced ? asked : by_engine ? GatherPath::copy_engine : GatherPath::zero_copy;
    route.reason = asked == GatherPath::host ? "asked for" : why_not(path);
    if (!route.reason.empty()) continue;
    route.path = path;
    if (path != GatherPath::copy_engine) continue;
    route.without_landing_reason = why_not(GatherPath::zero_copy);
    if (!route.without_landing_reason.empty()) continue;
    route.without_landing = GatherPath::zero_copy;
    route.without_landing_reason = "no room on the device to land by copy engine";
  }
}

MemoryShares share_memory(std::vector<Route>& routes, std::size_t batch, const LoaderOptions& options,
                          std::size_t available) {
  const bool engine_asked = options.gather == GatherPath::copy_engine;
  std::size_t kept = 0;
  MemoryShares shares{.resident = choose_residency(routes, options.residency, available)};
  if (options.residency.kind == Residency::Kind::automatic) {
    // What is resident makes room for what lands, unless that were much: the less is resident, the more
    // lands.
    for (std::size_t turn = 0; turn <= routes.size(); ++turn) {
      const std::size_t wanted = landing_bytes(routes, batch);
      if (shares.resident + wanted <= available || wanted == kept) break;
      if (wanted > (engine_asked ? available : available / 4)) {
        // Copy-engine alone was asked for: what then is resident must not keep the rest from landing.
        if (engine_asked) shares.resident = choose_residency(routes, options.residency, 0);
        break;
      }
      kept = wanted;
      shares.resident = choose_residency(routes, options.residency, available - kept);
    }
  }
  for (Route& route : routes) {
    const std::size_t bytes = landing_bytes(route, batch);
    const std::size_t left = available - shares.resident - shares.landing;
    route.lands = bytes > 0 && bytes <= left;
    if (route.lands) {
      shares.landing += bytes;
    } else if (bytes > 0 && engine_asked && route.engine_copied()) {
      throw OutOfMemory("the loader's device memory budget, beside its ring,", bytes,
                        shares.resident + shares.landing, left,
                        "copy-engine gather of what is converted or partly resident takes two batches as "
                        "stored: use smaller batches, make less resident, raise the budget, or gather "
                        "automatically");
    } else if (bytes > 0) {
      do_without_landing(route);
    }
  }
  return shares;
}

void give_up_landing(std::vector<Route>& routes) {
  for (Route& route : routes) {
    if (route.lands) do_without_landing(route);
  }
}

Layout lay_out(std::vector<Route>& routes, std::size_t batch) {
  Layout layout;
  const auto take = [](std::size_t& offset, std::size_t bytes) {
    return std::exchange(offset, offset + align_up(bytes, kAlignment));
  };
  for (const bool plain : {true, false}) {
    for (Route& route : routes) {
      if (route.is_plain_copy() != plain) continue;
      route.slot_offset = take(layout.slot_bytes, batch * route.delivered_bytes);
      if (route.lands) route.landing_offset = take(layout.landing_bytes, batch * route.row_bytes);
      if (!route.host_gathered()) continue;
      route.stage_offset = take(layout.stage_bytes, batch * route.row_bytes);
    }
  }
  layout.slot_indices = take(layout.slot_bytes, batch * sizeof(std::uint64_t));
  layout.stage_indices = take(layout.stage_bytes, batch * sizeof(std::uint64_t));
  // Where part of a field is resident and the rest comes listed, its rows are numbered anew.
  for (Route& route : routes) {
    if (route.is_listed() && route.resident_rows > 0) {
      route.stage_numbers = take(layout.stage_bytes, batch * sizeof(std::uint64_t));
    }
  }
  return layout;
}

Dataset narrow_small_fields(const Dataset& dataset, WorkerTeam* team) {
  std::vector<std::shared_ptr<const FieldReader>> readers(dataset.field_count());
  for (std::size_t f = 0; f < readers.size(); ++f) {
    readers[f] = dataset.reader(f);
    const std::size_t bytes = dataset.memory(f).size();
    if (bytes == 0 || bytes > kCheapToNarrow) continue;
    const Dataset alone({readers[f]});
    readers[f] = narrow_integers(alone, {.copy_limit = kCheapToNarrow, .team = team}).reader(0);
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
