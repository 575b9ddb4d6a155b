#include "loader/feed_facts.hpp"

#include "data/shared/block_reader.hpp"

#include <penstock/device/topology.hpp>
#include <penstock/memory/registration.hpp>

#include <cstdint>
#include <span>

namespace penstock {

namespace {

FieldFacts::PageLock page_lock(const Device& device, std::span<const std::byte> memory) {
  if (Registration::overlaps(device, memory.data(), memory.size())) {
    return Registration::overlaps_in_part(device, memory.data(), memory.size())
               ? FieldFacts::PageLock::none
               : FieldFacts::PageLock::registered;
  }
  // Memory that is locked at both ends without a Registration is one allocation of another library.
  const auto is_pinned = [&](const std::byte& at) { return device.kind_of(&at) == MemoryKind::pinned; };
  return is_pinned(memory.front()) && is_pinned(memory.back()) ? FieldFacts::PageLock::foreign
                                                               : FieldFacts::PageLock::none;
}

std::size_t used_bytes(const Dataset& dataset, std::span<const std::byte> allocation) {
  std::size_t used = 0;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.allocation(f).data() == allocation.data()) used += dataset.memory(f).size();
  }
  return used;
}

}  // namespace

FeedFacts collect_facts(const Dataset& dataset, const Device& device, std::size_t batch) {
  FeedFacts facts{.fields = {},
                  .device = {.batched_copies = device.info().batched_copies,
                             .tuning = device.info().tuning,
                             .free_bytes = device.memory().free},
                  .batch = batch,
                  .host_bytes = host_topology().memory_bytes};
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    FieldFacts& field = facts.fields.emplace_back();
    field.stored = dataset.field(f);
    field.samples = dataset.sample_count();
    field.sample_bytes = dataset.sample_bytes(f);
    field.strided = dataset.is_strided(f);
    field.varies = dataset.reader(f)->varies_by_epoch();
    field.on_disk = BlockReader::is_of(*dataset.reader(f));
    field.decoded = dataset.reader(f)->is_decoded();
    const auto memory = dataset.memory(f);
    if (memory.empty()) continue;
    const auto allocation = dataset.allocation(f);
    field.in_memory = true;
    field.file_mapping = dataset.is_file_mapping(f);
    field.aligned = reinterpret_cast<std::uintptr_t>(memory.data()) % dtype_bytes(field.stored.dtype) == 0;
    field.page_lock = page_lock(device, memory);
    field.allocation_bytes = allocation.size();
    field.allocation_used_bytes = used_bytes(dataset, allocation);
  }
  return facts;
}

}  // namespace penstock
