#include "loader/locked_sources.hpp"

#include "loader/read_all.hpp"

#include <penstock/core/error.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace penstock {

namespace {

using Bytes = std::span<const std::byte>;

/// Joins ranges that share a page, so that no page is locked twice.
std::vector<Bytes> join_pages(std::vector<Bytes> ranges) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin_of = [](Bytes range) { return reinterpret_cast<std::uintptr_t>(range.data()); };
  std::ranges::sort(ranges, {}, begin_of);
  std::vector<Bytes> joined;
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

const std::byte* reached(const Device& device, const std::byte* locked) {
  return static_cast<const std::byte*>(device.device_address(const_cast<std::byte*>(locked)));
}

/// Pinned memory; empty if there is none.
Buffer pinned_memory(const Device& device, std::size_t bytes) {
  try {
    return make_pinned_pool(device, {.segment_bytes = bytes, .purpose = "a loader"}).allocate(bytes);
  } catch (const OutOfMemory&) {
    return {};
  } catch (const Unsupported&) {
    return {};
  }
}

bool is_within(Bytes part, Bytes whole) {
  return part.data() >= whole.data() && part.data() < whole.data() + whole.size();
}

}  // namespace

LockedSources lock_sources(const FeedPlan& plan, const Dataset& dataset, const Device& device,
                           HostWorkers& workers, FeedFacts& facts) {
  using Source = FieldPlan::Source;
  LockedSources sources;
  sources.samples.resize(plan.fields.size());
  const auto streamed = [&](std::size_t f) {
    return dataset.memory(f).subspan(plan.fields[f].resident_bytes());
  };
  std::vector<Bytes> to_lock;
  for (std::size_t f = 0; f < facts.fields.size(); ++f) {
    FieldFacts& field = facts.fields[f];
    if (plan.fields[f].source == Source::locked) {
      to_lock.push_back(field.page_lock == FieldFacts::PageLock::registered ? dataset.memory(f)
                                                                            : dataset.allocation(f));
    } else if (plan.fields[f].source == Source::copied) {
      Buffer copy = pinned_memory(device, streamed(f).size());
      field.copy_refused = copy.empty();
      if (!copy.empty()) {
        std::memcpy(copy.data(), streamed(f).data(), copy.size());
        sources.samples[f] = reached(device, copy.data());
      }
      sources.refused |= copy.empty();
      sources.copies.push_back(std::move(copy));
    }
  }
  if (const FieldPlan* rows = plan.rows(); rows != nullptr && rows->source == Source::copied) {
    const std::size_t f = plan.fields.size() - 1;
    Buffer all = pinned_memory(device, static_cast<std::size_t>(rows->samples) * rows->sample_bytes);
    facts.rows_refused = all.empty();
    sources.refused |= all.empty();
    if (!sources.refused) {
      read_all(dataset, f, all.data(), workers);
      sources.samples[f] = reached(device, all.data()) + rows->resident_bytes();
      sources.rows = std::make_shared<const Buffer>(std::move(all));
    }
  }
  if (sources.refused) return sources;
  for (const Bytes pages : join_pages(std::move(to_lock))) {
    std::string why;
    auto registration = Registration::attempt(device, pages.data(), pages.size(), &why);
    if (registration) {
      sources.registrations.push_back(std::move(*registration));
      continue;
    }
    sources.refused = true;
    for (std::size_t f = 0; f < facts.fields.size(); ++f) {
      if (plan.fields[f].source == Source::locked && is_within(dataset.memory(f), pages)) {
        facts.fields[f].lock_refused = why;
      }
    }
  }
  if (sources.refused) return sources;
  for (std::size_t f = 0; f < facts.fields.size(); ++f) {
    const Source source = plan.fields[f].source;
    if (source == Source::locked || source == Source::pinned) {
      sources.samples[f] = reached(device, streamed(f).data());
    }
  }
  return sources;
}

}  // namespace penstock
