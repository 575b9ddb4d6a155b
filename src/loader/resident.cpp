#include "loader/resident.hpp"

#include "loader/plan_rows.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/transfer/pinned_ring.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace penstock {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
constexpr std::size_t kGatherBytes = std::size_t{8} << 20;

/// Moves samples that lie in memory, in chunks: one is in flight while the next is staged.
bool move_memory(TransferEngine& engine, std::byte* destination, std::span<const std::byte> source,
                 bool pinned, FunctionRef<bool()> stopped) {
  const CopyOptions options{.path = pinned ? TransferPath::automatic : TransferPath::staged,
                            .source_kind = pinned ? MemoryKind::pinned : MemoryKind::pageable,
                            .destination_kind = MemoryKind::device};
  Transfer before;
  for (std::size_t done = 0; done < source.size(); done += kChunkBytes) {
    if (stopped()) break;
    const std::size_t bytes = std::min(kChunkBytes, source.size() - done);
    const Transfer now = engine.copy(destination + done, source.data() + done, bytes, options);
    before.synchronize();
    before = now;
  }
  before.synchronize();
  return !stopped();
}

/// Moves samples that must be read one by one, through two pinned slots.
bool move_gathered(const Device& device, const Dataset& dataset, std::size_t f, const FieldPlan& field,
                   std::byte* destination, HostWorkers& workers, FunctionRef<bool()> stopped) {
  const std::uint64_t chunk_samples =
      std::clamp<std::uint64_t>(kGatherBytes / field.sample_bytes, 1, field.resident_samples);
  const std::size_t chunk_bytes = static_cast<std::size_t>(chunk_samples) * field.sample_bytes;
  const Stream stream = device.create_stream();
  Pool pinned = make_pinned_pool(device, {.segment_bytes = 2 * align_up(chunk_bytes, 256)});
  PinnedRing ring(device, pinned, 2, chunk_bytes);
  std::vector<std::uint64_t> indices(static_cast<std::size_t>(chunk_samples));
  const auto move_chunk = [&](std::uint64_t first) {
    PinnedRing::Slot& slot = ring.next();
    const auto count = static_cast<std::size_t>(std::min(chunk_samples, field.resident_samples - first));
    std::iota(indices.begin(), indices.end(), first);
    const std::size_t pieces = std::min(workers.threads(), count);
    workers.for_each(pieces, [&](std::size_t piece) {
      const std::size_t begin = count * piece / pieces;
      const std::size_t end = count * (piece + 1) / pieces;
      dataset.gather(f, std::span(indices).subspan(begin, end - begin),
                     slot.bytes().subspan(begin * field.sample_bytes, (end - begin) * field.sample_bytes));
    });
    stream.copy(destination + first * field.sample_bytes, slot.data(), count * field.sample_bytes,
                CopyDirection::h2d);
    slot.sent(stream);
  };
  for (std::uint64_t first = 0; first < field.resident_samples && !stopped(); first += chunk_samples) {
    move_chunk(first);
  }
  stream.synchronize();
  return !stopped();
}

}  // namespace

Resident::Resident(const Device& device, Pool& memory, const FeedPlan& plan) : device_(device) {
  for (const FieldPlan& field : plan.fields) {
    samples_.push_back(field.resident_samples > 0 ? memory.allocate(field.resident_bytes()) : Buffer());
  }
  factors_.resize(plan.fields.size());
  if (plan.table_bytes > 0) upload_tables(memory, plan);
}

void Resident::upload_tables(Pool& memory, const FeedPlan& plan) {
  table_memory_ = memory.allocate(plan.table_bytes);
  Pool pinned = make_pinned_pool(device_, {.segment_bytes = 4096});
  Buffer staged = pinned.allocate(plan.table_bytes);
  std::size_t offset = 0;
  const auto put = [&]<typename T>(const std::vector<T>& values) -> const T* {
    if (values.empty()) return nullptr;
    const std::size_t bytes = values.size() * sizeof(T);
    std::memcpy(staged.data() + offset, values.data(), bytes);
    const auto* const there = reinterpret_cast<const T*>(table_memory_.data() + offset);
    offset += bytes;
    return there;
  };
  if (const FieldPlan* rows = plan.rows()) {
    const std::vector<RowValue> values = row_values(plan);
    split_.row_bytes = rows->sample_bytes;
    split_.values = put(values);
    split_.value_count = static_cast<std::uint32_t>(values.size());
    split_.firsts = put(segment_firsts(values, rows->sample_bytes));
  }
  for (std::size_t f = 0; f < plan.fields.size(); ++f) {
    if (plan.fields[f].is_column()) continue;
    const ChannelFactors& factors = plan.fields[f].factors;
    factors_[f] = {.scale = put(factors.scale), .shift = put(factors.shift)};
  }
  const Stream stream = device_.create_stream();
  stream.copy(table_memory_.data(), staged.data(), offset, CopyDirection::h2d);
  staged.release_after(stream);
  stream.synchronize();
}

void Resident::set_addresses(std::vector<FieldAddresses>& fields) const {
  for (std::size_t f = 0; f < fields.size(); ++f) {
    fields[f].resident = samples_[f].data();
    fields[f].scale = factors_[f].scale;
    fields[f].shift = factors_[f].shift;
  }
}

bool Resident::fill(const Dataset& dataset, const FeedPlan& plan, const LinkProfile& profile,
                    const std::shared_ptr<HostWorkers>& workers, FunctionRef<bool()> stopped) {
  std::unique_ptr<TransferEngine> engine;
  for (std::size_t f = 0; f < plan.fields.size(); ++f) {
    const FieldPlan& field = plan.fields[f];
    if (field.resident_samples == 0) continue;
    std::byte* const there = samples_[f].data();
    bool whole = false;
    if (field.upload == FieldPlan::Upload::gathered) {
      whole = move_gathered(device_, dataset, f, field, there, *workers, stopped);
    } else {
      if (engine == nullptr)
        engine = std::make_unique<TransferEngine>(device_,
                                                  TransferOptions{.profile = profile, .workers = workers});
      whole = move_memory(*engine, there, dataset.memory(f).first(field.resident_bytes()),
                          field.upload == FieldPlan::Upload::direct, stopped);
    }
    if (!whole) return false;
  }
  return true;
}

}  // namespace penstock
