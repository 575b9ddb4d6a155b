#include "totals.hpp"

#include "mix.hpp"

#include <bit>

namespace penstock::recorder {

namespace {

using recording::Record;
using recording::RecordType;
using recording::Total;

void add(std::uint64_t& sum, std::uint64_t more) noexcept {
  if (more > 0) __atomic_fetch_add(&sum, more, __ATOMIC_RELAXED);
}

/// The key's slot, or a free one that it takes; null if it finds none.
Total* find_slot(std::span<Total> slots, std::uint64_t key) noexcept {
  std::size_t at = static_cast<std::size_t>((mix(0, key) >> 32) * slots.size() >> 32);
  for (std::size_t i = 0; i < kMostLooks; ++i) {
    Total& slot = slots[at];
    std::uint64_t known = __atomic_load_n(&slot.key, __ATOMIC_RELAXED);
    // If another thread takes the slot first, its key is known then.
    if (known == 0 &&
        __atomic_compare_exchange_n(&slot.key, &known, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return &slot;
    if (known == key) return &slot;
    at = at + 1 == slots.size() ? 0 : at + 1;
  }
  return nullptr;
}

}  // namespace

void add_to_totals(std::span<Total> totals, const Record& record, std::uint64_t copied) noexcept {
  const auto key = std::bit_cast<std::uint64_t>(recording::total_key(record));
  if (key == 0) return;
  Total* slot = find_slot(totals.subspan(recording::kOtherTotals), key);
  if (slot == nullptr) slot = &totals[static_cast<std::size_t>(record.type)];
  add(slot->count, 1);
  add(slot->bytes, record.type == RecordType::copy ? record.bytes : copied);
  if (record.end > record.begin)
    add(slot->nanoseconds, static_cast<std::uint64_t>(record.end - record.begin));
}

void keep_earliest(std::int64_t& first, std::int64_t time) noexcept {
  std::int64_t known = __atomic_load_n(&first, __ATOMIC_RELAXED);
  while ((known == 0 || time < known) &&
         !__atomic_compare_exchange_n(&first, &known, time, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace penstock::recorder
