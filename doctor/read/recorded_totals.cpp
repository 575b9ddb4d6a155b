#include "doctor/read/recorded_totals.hpp"

#include "doctor/read/cupti_kinds.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

using recording::RecordType;
using recording::Total;
using recording::TotalKey;

constexpr std::uint64_t kMost = std::uint64_t{1} << 60;

class TotalsSorter {
 public:
  explicit TotalsSorter(const RecordedNames& names) : names_(names) {}

  /// False if no recorder writes it.
  [[nodiscard]] bool add(const Total& total) {
    const auto key = std::bit_cast<TotalKey>(total.key);
    const bool of_device = key.type == RecordType::copy || key.type == RecordType::work;
    if (of_device && key.of >= kMostRecordedDevices) return false;
    const auto device = static_cast<std::uint16_t>(key.of);
    switch (key.type) {
      case RecordType::copy:
        add_copies(key, device, sum_of(total));
        return true;
      case RecordType::work:
        if (key.detail > 1) return false;
        work_[{device, key.detail == 1}] += sum_of(total);
        return true;
      case RecordType::call:
        if (key.detail > static_cast<std::uint8_t>(CallKind::free)) return false;
        run_.calls.push_back({names_.of_place(key.of), static_cast<CallKind>(key.detail), sum_of(total)});
        return true;
      case RecordType::wait:
        if (key.detail >= std::size(recording::kLoaders)) return false;
        run_.waits.push_back({names_.of_place(key.of), names_.of_loader(key.detail), sum_of(total)});
        return true;
      case RecordType::range:
      case RecordType::look:
        break;
    }
    return false;
  }

  void add_others(std::span<const Total> others) {
    const auto of = [&others](RecordType type) { return sum_of(others[static_cast<std::size_t>(type)]); };
    run_.other_calls = of(RecordType::call);
    run_.other_waits = of(RecordType::wait);
    run_.other_copies = of(RecordType::copy);
    run_.other_work = of(RecordType::work);
  }

  [[nodiscard]] WholeRun finish() {
    for (const auto& [key, sum] : copies_)
      std::apply([&](const auto&... parts) { run_.copies.push_back({parts..., sum}); }, key);
    for (const auto& [key, sum] : work_) run_.work.push_back({key.first, key.second, sum});
    return std::move(run_);
  }

 private:
  static RunSum sum_of(const Total& total) {
    return {total.count, total.bytes, static_cast<double>(total.nanoseconds) * 1e-9};
  }

  void add_copies(TotalKey key, std::uint16_t device, const RunSum& sum) {
    if (const auto to = cupti_direction(key.detail))
      copies_[{device, *to, cupti_memory_kind(key.extra & 0xFFu), cupti_memory_kind(key.extra >> 8u)}] += sum;
  }

  const RecordedNames& names_;
  WholeRun run_;
  std::map<std::tuple<std::uint16_t, CopyDirection, std::optional<MemoryKind>, std::optional<MemoryKind>>,
           RunSum>
      copies_;
  std::map<std::pair<std::uint16_t, bool>, RunSum> work_;
};

}  // namespace

std::optional<WholeRun> sort_totals(std::span<const Total> totals, const RecordedNames& names) {
  for (const Total& total : totals) {
    if (std::max({total.count, total.bytes, total.nanoseconds}) > kMost) return std::nullopt;
  }
  TotalsSorter sorter(names);
  sorter.add_others(totals.first(recording::kOtherTotals));
  for (const Total& total : totals.subspan(recording::kOtherTotals)) {
    // The program may have ended when a slot had a key, and no count yet.
    if (total.key != 0 && !sorter.add(total)) return std::nullopt;
  }
  return sorter.finish();
}

}  // namespace penstock
