#include "loader/sources.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace penstock {

namespace {

// A slice is worth locking its whole array for where it is at least one byte in so many.
constexpr std::size_t kLeastPart = 2;

using Range = std::span<const std::byte>;

/// Ranges of whole pages, none touching another.
std::vector<Range> join_pages(std::vector<Range> ranges) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin_of = [](Range range) { return reinterpret_cast<std::uintptr_t>(range.data()); };
  std::ranges::sort(ranges, {}, begin_of);
  std::vector<Range> joined;
  for (const auto range : ranges) {
    if (!joined.empty()) {
      auto& last = joined.back();
      const std::uintptr_t end = begin_of(last) + last.size();
      if (begin_of(range) / page <= (end - 1) / page) {
        const std::uintptr_t new_end = std::max(end, begin_of(range) + range.size());
        last = {last.data(), new_end - begin_of(last)};
        continue;
      }
    }
    joined.push_back(range);
  }
  return joined;
}

/// The rows of a field in memory that are not resident.
Range streamed_rows(const Route& route, Range memory) {
  return memory.subspan(static_cast<std::size_t>(route.resident_rows) * route.row_bytes);
}

void set_source(Route& route, const Device& device, const std::byte* first) {
  route.source =
      static_cast<const std::byte*>(device.backend().device_address(const_cast<std::byte*>(first)));
}

void leave_to_host(Route& route, GatherPath asked, std::string why) {
  if (is_forced(asked)) {
    throw Unsupported(fmt::format("Field '{}' cannot be gathered by {}: {}", route.stored.name,
                                  gather_path_name(asked), why));
  }
  route.path = GatherPath::host;
  route.reason = std::move(why);
}

bool is_registered(const Device& device, Range memory) {
  return Registration::overlaps(device, memory.data(), memory.size()) &&
         !Registration::overlaps_in_part(device, memory.data(), memory.size());
}

/// Copies what streams of a field into locked memory; false where there is none.
bool copy_source(Route& route, const Device& device, Range streamed, std::vector<Buffer>& copies) {
  try {
    Pool pool = make_pinned_pool(device, {.segment_bytes = streamed.size()});
    Buffer copy = pool.allocate(streamed.size());
    std::memcpy(copy.data(), streamed.data(), streamed.size());
    set_source(route, device, copy.data());
    copies.push_back(std::move(copy));
    return true;
  } catch (const OutOfMemory&) {
    return false;
  } catch (const Unsupported&) {
    return false;
  }
}

}  // namespace

bool is_small_part(const Dataset& dataset, std::size_t field, const Device& device,
                   const LoaderOptions& options) {
  const Range memory = dataset.memory(field);
  const Range whole = dataset.allocation(field);
  if (memory.size() <= options.copy_limit_bytes || is_registered(device, memory) ||
      is_locked_by_others(device, memory)) {
    return false;
  }
  std::size_t used = 0;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.allocation(f).data() == whole.data()) used += dataset.memory(f).size();
  }
  return whole.size() / kLeastPart > used;
}

bool is_locked_by_others(const Device& device, std::span<const std::byte> range) {
  const auto is_locked = [&](const std::byte& at) {
    return device.backend().kind_of(&at) == MemoryKind::pinned;
  };
  return is_locked(range.front()) && is_locked(range.back()) &&
         !Registration::overlaps(device, range.data(), range.size());
}

LockedSources lock_sources(std::vector<Route>& routes, const Dataset& dataset, const Device& device,
                           const LoaderOptions& options) {
  const GatherPath asked = options.gather;
  LockedSources locked;
  std::vector<Range> ranges;
  std::vector<std::size_t> in_place;  // fields
  for (std::size_t f = 0; f < routes.size(); ++f) {
    Route& route = routes[f];
    if (!route.streams()) continue;
    if (route.path == GatherPath::host) {
      if (!is_forced(asked)) continue;
      throw InvalidArgument(fmt::format("Field '{}' cannot be gathered by {}: {}.", route.stored.name,
                                        gather_path_name(asked), route.reason));
    }
    const Range memory = dataset.memory(f);
    const Range streamed = streamed_rows(route, memory);
    const bool registered = is_registered(device, memory);
    // Anybody can cut a file short that is mapped: only the device may read there.
    const bool copied =
        !registered && memory.size() <= options.copy_limit_bytes && !dataset.is_file_mapping(f);
    if (is_locked_by_others(device, memory)) {
      set_source(route, device, streamed.data());
    } else if (!copied || !copy_source(route, device, streamed, locked.copies)) {
      ranges.push_back(registered ? memory : dataset.allocation(f));
      in_place.push_back(f);
    }
  }
  std::vector<std::pair<Range, std::string>> refused;
  for (const Range range : join_pages(std::move(ranges))) {
    std::string why;
    auto registration = Registration::attempt(device, range.data(), range.size(), &why);
    if (registration) {
      locked.registrations.push_back(std::move(*registration));
    } else {
      refused.emplace_back(range, std::move(why));
    }
  }
  for (const std::size_t f : in_place) {
    Route& route = routes[f];
    const Range memory = dataset.memory(f);
    const auto found = std::ranges::find_if(refused, [&](const auto& each) {
      const Range range = each.first;
      return memory.data() >= range.data() && memory.data() < range.data() + range.size();
    });
    if (found != refused.end()) {
      leave_to_host(route, asked, "its memory cannot be locked: " + found->second);
    } else {
      set_source(route, device, streamed_rows(route, memory).data());
    }
  }
  return locked;
}

}  // namespace penstock
