#include "doctor/read/recorded_totals.hpp"

#include "doctor/read/cupti_kinds.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

namespace penstock {

namespace {

using recording::RecordType;
using recording::Total;
using recording::TotalKey;

constexpr std::uint64_t kMost = std::uint64_t{1} << 60;

RunSum sum_of(const Total& total) {
  return {total.count, total.bytes, static_cast<double>(total.nanoseconds) * 1e-9};
}

/// False if no recorder writes it.
bool add(WholeRun& run, const Total& total, NameOfPlace name_of) {
  const auto key = std::bit_cast<TotalKey>(total.key);
  const bool of_device = key.type == RecordType::copy || key.type == RecordType::work;
  if (of_device && key.of >= kMostRecordedDevices) return false;
  const auto device = static_cast<std::uint16_t>(key.of);
  switch (key.type) {
    case RecordType::copy:
      if (const auto to = cupti_direction(key.detail))
        run.copies[{device, *to, cupti_memory_kind(key.extra & 0xFFu), cupti_memory_kind(key.extra >> 8u)}] +=
            sum_of(total);
      return true;
    case RecordType::work:
      if (key.detail > 1) return false;
      run.work[{device, key.detail == 1}] += sum_of(total);
      return true;
    case RecordType::call:
      if (key.detail > static_cast<std::uint8_t>(CallKind::free)) return false;
      run.lines.push_back(
          {name_of(key.of), call_kind_name(static_cast<CallKind>(key.detail)), sum_of(total)});
      return true;
    case RecordType::wait:
      if (key.detail >= std::size(recording::kLoaders)) return false;
      run.lines.push_back({name_of(key.of), recording::kLoaders[key.detail].name, sum_of(total)});
      return true;
    case RecordType::range:
    case RecordType::look:
      break;
  }
  return false;
}

}  // namespace

std::optional<WholeRun> sort_totals(std::span<const Total> totals, NameOfPlace name_of) {
  for (const Total& total : totals) {
    if (std::max({total.count, total.bytes, total.nanoseconds}) > kMost) return std::nullopt;
  }
  const auto others = [&totals](RecordType type) { return sum_of(totals[static_cast<std::size_t>(type)]); };
  WholeRun run;
  run.other_calls = others(RecordType::call);
  run.other_waits = others(RecordType::wait);
  run.other_copies = others(RecordType::copy);
  run.other_work = others(RecordType::work);
  for (const Total& total : totals.subspan(recording::kOtherTotals)) {
    // The program may have ended when a slot had a key, and no count yet.
    if (total.key != 0 && !add(run, total, name_of)) return std::nullopt;
  }
  return run;
}

}  // namespace penstock
