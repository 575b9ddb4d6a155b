#include "loader/plan_feed.hpp"

#include "loader/gather_rates.hpp"
#include "loader/plan_rows.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

// Smallest batch that gets a copy of its own into a staging buffer on the device.
constexpr std::size_t kLeastStagedBytes = std::size_t{64} << 10;
// The whole array is locked for a slice if the slice is at least one byte in this many.
constexpr std::size_t kLeastPart = 2;

bool is_forced(GatherPath asked) noexcept {
  return asked == GatherPath::zero_copy || asked == GatherPath::copy_engine;
}

// Fields.

void apply(FieldPlan& field, const FieldOptions& options) {
  if (options.to) field.to = *options.to;
  if (!can_widen(field.stored.dtype, field.to)) {
    throw InvalidArgument(fmt::format(
        "Field '{}' is stored as {} and cannot be delivered as {}: uint8, int8, int16, uint16, float16, "
        "bfloat16 and float32 widen to float16, bfloat16 and float32, integers to wider integers.",
        field.stored.name, dtype_name(field.stored.dtype), dtype_name(field.to)));
  }
  const bool scaled = !options.scale.empty() || !options.shift.empty();
  if (scaled && !is_model_float(field.to)) {
    throw InvalidArgument(
        fmt::format("Field '{}' is delivered as {}, but scale and shift need float16, bfloat16 or "
                    "float32: name one of them.",
                    field.stored.name, dtype_name(field.to)));
  }
  field.factors = channel_factors(field.stored, options);
}

FieldPlan plan_field(const FieldFacts& facts) {
  FieldPlan field;
  field.stored = facts.stored;
  field.to = facts.stored.narrowed_from.value_or(facts.stored.dtype);
  field.samples = facts.samples;
  field.sample_elements = element_count(facts.stored.shape);
  field.sample_bytes = facts.sample_bytes;
  field.decoder = facts.decoder;
  field.on_disk = facts.on_disk;
  if (facts.in_memory && !facts.file_mapping) {
    // If only some pages are locked, for a neighbour, the device cannot copy the field in one piece.
    field.upload = facts.page_lock == FieldFacts::PageLock::foreign ? FieldPlan::Upload::direct
                                                                    : FieldPlan::Upload::staged;
  }
  return field;
}

FieldPlan& field_named(FeedPlan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (FieldPlan& field : plan.fields) {
    if (field.stored.name == name) return field;
    names.push_back(field.stored.name);
  }
  throw InvalidArgument(
      fmt::format("The dataset has no field '{}'; it has: {}.", name, fmt::join(names, ", ")));
}

void plan_fields(FeedPlan& plan, const FeedFacts& facts, const std::vector<FieldOptions>& options) {
  for (const FieldFacts& field : facts.fields) plan.fields.push_back(plan_field(field));
  for (std::size_t i = 0; i < options.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (options[j].name == options[i].name) {
        throw InvalidArgument(fmt::format("Field '{}' has options twice; give them once.", options[i].name));
      }
    }
    apply(field_named(plan, options[i].name), options[i]);
  }
  for (FieldPlan& field : plan.fields) {
    field.delivered_bytes = field.sample_elements * dtype_bytes(field.to);
  }
}

// Paths.

/// True if the field would be locked with its whole array, of which less than half is fed.
bool is_small_part(const FieldFacts& facts, const LoaderOptions& options) {
  return facts.bytes() > options.copy_limit_bytes && facts.page_lock == FieldFacts::PageLock::none &&
         facts.allocation_bytes / kLeastPart > facts.allocation_used_bytes;
}

/// True if locking the field's memory could lock pages of other data.
bool is_small(const FieldFacts& facts, const LoaderOptions& options) {
  return facts.page_lock == FieldFacts::PageLock::none && facts.bytes() <= options.copy_limit_bytes &&
         !facts.file_mapping;
}

/// How the device would reach the samples.
FieldPlan::Source source_of(const FieldFacts& facts, const LoaderOptions& options) {
  using PageLock = FieldFacts::PageLock;
  if (facts.page_lock == PageLock::foreign) return FieldPlan::Source::pinned;
  // Anybody can cut a mapped file short, so only the device may read there.
  const bool copied = is_small(facts, options) && !options.data_may_change && !facts.copy_refused;
  return copied ? FieldPlan::Source::copied : FieldPlan::Source::locked;
}

/// Why the host must gather instead of `path`; empty if it need not.
std::string why_host(const FieldPlan& field, const FieldFacts& facts, GatherPath path,
                     const GatherRates& rates, const LoaderOptions& options) {
  const bool forced = is_forced(options.gather);
  const bool by_engine = path == GatherPath::copy_engine;
  if (facts.decoded) return "its pictures are decoded" + facts.not_decoder;
  if (!facts.in_memory) return "its samples do not lie side by side in memory";
  if (!(forced && by_engine) && field.converts() && !facts.aligned) {
    return "its values are not aligned to their type";
  }
  if (forced) return {};
  if (facts.on_disk) return "a part of it lies on a disk, which the host asks for many samples at once";
  if (facts.file_mapping) return "its samples lie in a mapped file";
  if (is_small_part(facts, options)) {
    return "it is a small part of an array, whose other parts share pages with it";
  }
  if (options.data_may_change && is_small(facts, options)) {
    return "its samples may change, and it is small, so that it shares pages with other data";
  }
  if (facts.lock_refused && source_of(facts, options) == FieldPlan::Source::locked) {
    return "its memory cannot be locked: " + *facts.lock_refused;
  }
  if (by_engine || kernels_pay(rates)) return {};
  return fmt::format("the link profile says that kernels read over the link at {:.1f} GB/s, copies at {:.1f}",
                     rates.by_kernels / kGB, rates.by_host / kGB);
}

/// A way to gather the samples of a field that stream.
struct Choice {
  GatherPath path = GatherPath::host;
  std::string reason;
};

/// The choices of one field. The second is taken if the device has no room for the first one's staging.
struct Choices {
  Choice first;
  Choice without_staging;
};

Choices choose_path(const FieldPlan& field, const FieldFacts& facts, const FeedFacts& all,
                    const LoaderOptions& options, const LinkProfile& profile, std::size_t batch) {
  const GatherPath asked = options.gather;
  if (asked == GatherPath::host) return {{GatherPath::host, "asked for"}, {}};
  // Successive samples are one copy.
  const bool in_sequence = !options.shuffle && !options.batch_sampler && options.shard.world_size == 1;
  const GatherRates rates = gather_rates(profile, all.device.tuning, field.sample_bytes, batch, in_sequence);
  const bool by_engine = all.device.batched_copies && options.gather_blocks == 0 && copies_pay(rates);
  const GatherPath path = is_forced(asked) ? asked
                          : by_engine      ? GatherPath::copy_engine
                                           : GatherPath::zero_copy;
  const auto choose = [&](GatherPath wanted) -> Choice {
    std::string why = why_host(field, facts, wanted, rates, options);
    return why.empty() ? Choice{wanted, {}} : Choice{GatherPath::host, std::move(why)};
  };
  Choices choices{choose(path), {}};
  if (choices.first.path != GatherPath::copy_engine) return choices;
  choices.without_staging = choose(GatherPath::zero_copy);
  if (choices.without_staging.path == GatherPath::zero_copy) {
    choices.without_staging.reason = "the copy engine has no room on the device for its staging buffers";
  }
  return choices;
}

// Memory.

std::size_t slot_bytes(const FeedPlan& plan) {
  std::size_t bytes = 0;
  for (const FieldPlan& field : plan.fields) {
    std::size_t batch = 0;
    if (__builtin_mul_overflow(plan.batch, field.delivered_bytes, &batch) || batch > std::size_t{1} << 60) {
      throw InvalidArgument(
          fmt::format("A batch of {} samples of field '{}' exceeds any memory; use a smaller batch.",
                      plan.batch, field.stored.name));
    }
    bytes += field.is_column() ? plan.column_samples(field) * field.delivered_bytes
                               : align_up(batch, kSlotAlignment);
  }
  return bytes;
}

std::size_t table_bytes(const FeedPlan& plan) noexcept {
  std::size_t factors = 0;
  std::size_t values = 0;
  for (const FieldPlan& field : plan.fields) {
    if (field.is_column()) {
      values += field.sample_elements;
    } else {
      factors += field.factors.scale.size() + field.factors.shift.size();
    }
  }
  std::size_t bytes = align_up(factors * sizeof(float), kSlotAlignment);
  if (const FieldPlan* rows = plan.rows()) {
    bytes += align_up(values * sizeof(RowValue), kSlotAlignment);
    bytes += align_up((rows->sample_bytes / kSplitSegmentBytes + 2) * sizeof(std::uint32_t), kSlotAlignment);
  }
  return bytes;
}

std::uint64_t resident_samples(const FieldPlan& field, const Residency& residency, std::size_t available) {
  switch (residency.kind) {
    case Residency::Kind::none:
      return 0;
    case Residency::Kind::all:
      return field.samples;
    case Residency::Kind::fraction:
      return std::min(
          field.samples,
          static_cast<std::uint64_t>(std::floor(residency.fraction * static_cast<double>(field.samples))));
    case Residency::Kind::automatic:
      return std::min<std::uint64_t>(field.samples, available / field.sample_bytes);
  }
  return 0;
}

/// Sets `resident_samples` within `available` bytes; returns the bytes that they take.
std::size_t choose_residents(FeedPlan& plan, const Residency& residency, std::size_t available) {
  if (residency.kind == Residency::Kind::none) return 0;
  std::vector<FieldPlan*> smallest_first;
  for (FieldPlan& field : plan.fields) {
    if (!field.is_column()) smallest_first.push_back(&field);
  }
  std::ranges::sort(smallest_first, {},
                    [](const FieldPlan* field) { return std::pair(field->sample_bytes, field); });
  std::size_t bytes = 0;
  for (FieldPlan* field : smallest_first) {
    const std::size_t left = available - std::min(available, bytes + kSlotAlignment);
    field->resident_samples = resident_samples(*field, residency, left);
    bytes += align_up(field->resident_bytes(), kSlotAlignment);
  }
  if (bytes > available && residency.kind != Residency::Kind::automatic) {
    throw OutOfMemory(
        "the loader's device memory budget, beside its ring,", bytes, 0, available,
        "make less of the dataset resident (auto takes what fits), use smaller batches, or raise the "
        "budget");
  }
  return bytes;
}

/// Bytes of staging buffers, for all copy streams, that would help the field; 0 if it needs none. Rows have
/// room of their own.
std::size_t device_staging_bytes(const FieldPlan& field, std::size_t batch) noexcept {
  if (field.is_rows()) return 0;
  const std::size_t bytes = batch * field.sample_bytes;
  const bool needs_kernel = field.converts() || field.resident_samples > 0;
  const bool helps =
      field.by_copy_engine() || field.by_decoder() || (field.by_host() && bytes >= kLeastStagedBytes);
  return needs_kernel && helps ? kCopyStreams * align_up(bytes, kSlotAlignment) : 0;
}

/// Bytes of the buffers in which rows land, for all copy streams. Rows that the host lists land in one
/// buffer, and are joined with resident rows in another.
std::size_t landing_bytes(const FeedPlan& plan, const Residency& residency) noexcept {
  const FieldPlan* rows = plan.rows();
  if (rows == nullptr) return 0;
  const bool joins = rows->path != GatherPath::zero_copy && residency.kind != Residency::Kind::none;
  return kCopyStreams * (joins ? 2 : 1) * align_up(plan.batch * rows->sample_bytes, kSlotAlignment);
}

/// Device memory for the indices of a batch on each copy stream.
std::size_t order_bytes(const FeedPlan& plan) noexcept {
  return kCopyStreams * align_up(plan.batch * sizeof(std::uint64_t), kSlotAlignment);
}

/// Bytes of the lists of a batch that the host writes and kernels read: of its indices, and of the positions
/// of each field that the host lists and kernels join. 0: kernels read none of them.
std::size_t list_bytes(const FeedPlan& plan) noexcept {
  const auto joined = std::ranges::count_if(
      plan.fields, [](const FieldPlan& field) { return field.is_listed() && field.resident_samples > 0; });
  const bool any = joined > 0 || std::ranges::any_of(plan.fields, &FieldPlan::by_kernel);
  return any ? static_cast<std::size_t>(1 + joined) *
                   align_up(plan.batch * sizeof(std::uint64_t), kSlotAlignment)
             : 0;
}

/// Bytes of staging buffers and lists, for all copy streams, that would help the plan's fields.
std::size_t device_staging_bytes(const FeedPlan& plan) noexcept {
  std::size_t bytes = 0;
  for (const FieldPlan& field : plan.fields) bytes += device_staging_bytes(field, plan.batch);
  const bool in_two_parts = std::ranges::any_of(plan.fields, &FieldPlan::in_two_parts);
  return bytes + (in_two_parts ? kCopyStreams * list_bytes(plan) : 0);
}

/// Chooses the resident samples within `available` bytes, and leaves room for staging buffers unless they
/// would take much. The fewer samples are resident, the more fields are staged.
std::size_t choose_residents_and_leave_room(FeedPlan& plan, const LoaderOptions& options,
                                            std::size_t available) {
  std::size_t resident = choose_residents(plan, options.residency, available);
  if (options.residency.kind != Residency::Kind::automatic) return resident;
  const bool engine_asked = options.gather == GatherPath::copy_engine;
  std::size_t kept = 0;
  for (std::size_t turn = 0; turn <= plan.fields.size(); ++turn) {
    const std::size_t wanted = device_staging_bytes(plan);
    if (resident + wanted <= available || wanted == kept) break;
    if (wanted > (engine_asked ? available : available / 4)) {
      // If the copy engine was asked for, its staging takes precedence over resident samples.
      return engine_asked ? choose_residents(plan, options.residency, 0) : resident;
    }
    kept = wanted;
    resident = choose_residents(plan, options.residency, available - kept);
  }
  return resident;
}

/// Gives staging buffers on the device to the fields that they help, within `available` bytes. Fields without
/// one take their other path. Returns the bytes for all copy streams.
std::size_t stage_on_device(FeedPlan& plan, const std::vector<Choices>& choices, const LoaderOptions& options,
                            const DeviceFacts& device, std::size_t resident, std::size_t available) {
  const bool engine_asked = options.gather == GatherPath::copy_engine;
  std::size_t staged = 0;
  for (std::size_t f = 0; f < plan.fields.size(); ++f) {
    FieldPlan& field = plan.fields[f];
    const std::size_t bytes = device_staging_bytes(field, plan.batch);
    const std::size_t left = available - resident - staged;
    if (field.is_rows()) field.staged_on_device = field.is_listed();
    if (bytes == 0) continue;
    if (engine_asked && bytes > left && field.by_copy_engine()) {
      throw OutOfMemory("the loader's device memory budget, beside its ring,", bytes, resident + staged, left,
                        "copy-engine gather of samples that are converted or partly resident takes two "
                        "batches as stored: use smaller batches, make less resident, raise the budget, or "
                        "gather automatically");
    }
    if (bytes > left && field.by_decoder()) {
      throw OutOfMemory(
          "the loader's device memory budget, beside its ring,", bytes, resident + staged, left,
          "pictures that the device decodes take two batches of uint8 there: use smaller batches, "
          "raise the budget, or have the host decode");
    }
    field.staged_on_device = bytes <= left && (engine_asked || field.by_decoder() || !device.memory_refused);
    if (field.staged_on_device) {
      staged += bytes;
    } else if (field.by_copy_engine()) {
      field.path = choices[f].without_staging.path;
      field.reason = choices[f].without_staging.reason;
    }
  }
  return staged;
}

/// Chooses how the device reaches the samples that it reads itself. Throws if a field cannot take the wanted
/// path.
void choose_sources(FeedPlan& plan, const FeedFacts& facts, const LoaderOptions& options) {
  for (std::size_t f = 0; f < plan.fields.size(); ++f) {
    FieldPlan& field = plan.fields[f];
    if (!field.streams()) continue;
    if (field.is_rows()) {
      field.source = FieldPlan::Source::copied;
      field.upload = FieldPlan::Upload::direct;
      continue;
    }
    if (field.by_host()) {
      if (!is_forced(options.gather)) continue;
      throw InvalidArgument(fmt::format("Field '{}' cannot be gathered by {}: {}.", field.stored.name,
                                        gather_path_name(options.gather), field.reason));
    }
    field.source = source_of(facts.fields[f], options);
    if (field.source == FieldPlan::Source::locked && facts.fields[f].lock_refused) {
      throw Unsupported(fmt::format("Field '{}' cannot be gathered by {}: its memory cannot be locked: {}",
                                    field.stored.name, gather_path_name(options.gather),
                                    *facts.fields[f].lock_refused));
    }
  }
}

std::size_t take(std::size_t& offset, std::size_t bytes) noexcept {
  return std::exchange(offset, offset + align_up(bytes, kSlotAlignment));
}

/// Puts columns of equal type and shape at equal distances, so that they are one array.
void lay_out_columns(FeedPlan& plan) {
  std::vector<FieldPlan*> columns;
  for (FieldPlan& field : plan.fields) {
    if (field.is_column()) columns.push_back(&field);
  }
  std::ranges::sort(columns, [](const FieldPlan* a, const FieldPlan* b) {
    return std::tie(a->to, a->stored.shape, a) < std::tie(b->to, b->stored.shape, b);
  });
  for (FieldPlan* column : columns) {
    column->slot_offset = take(plan.slot_bytes, plan.column_samples(*column) * column->delivered_bytes);
  }
}

/// Puts plain copies side by side, in the slot and in the staging slot alike.
void lay_out(FeedPlan& plan) {
  plan.slot_bytes = 0;
  for (const bool plain : {true, false}) {
    for (FieldPlan& field : plan.fields) {
      if (field.is_plain_copy() != plain || field.is_column()) continue;
      if (!field.is_rows()) field.slot_offset = take(plan.slot_bytes, plan.batch * field.delivered_bytes);
      if (field.staged_on_device) {
        field.device_staging_offset = take(plan.device_staging_bytes, plan.batch * field.sample_bytes);
      }
      field.rows_offset = field.device_staging_offset;
      if (field.is_rows() && (field.by_kernel() || field.resident_samples > 0)) {
        field.rows_offset = take(plan.device_staging_bytes, plan.batch * field.sample_bytes);
      }
      if (field.by_host()) field.staging_offset = take(plan.staging_bytes, plan.batch * field.sample_bytes);
    }
  }
  lay_out_columns(plan);
  if (plan.orders_on_device) {
    plan.order_offset = take(plan.device_staging_bytes, plan.batch * sizeof(std::uint64_t));
  } else {
    plan.staging_indices = take(plan.staging_bytes, plan.batch * sizeof(std::uint64_t));
  }
  for (FieldPlan& field : plan.fields) {
    if (field.is_listed() && field.resident_samples > 0) {
      field.staging_positions = take(plan.staging_bytes, plan.batch * sizeof(std::uint64_t));
    }
  }
  if (plan.list_bytes > 0) plan.device_lists = take(plan.device_staging_bytes, plan.list_bytes);
}

void check_residency(const Residency& residency, const FeedFacts& facts) {
  if (residency.kind == Residency::Kind::fraction && !(residency.fraction >= 0 && residency.fraction <= 1)) {
    throw InvalidArgument(
        fmt::format("A residency of {} was asked for; fractions go from 0 to 1.", residency.fraction));
  }
  for (const FieldFacts& field : facts.fields) {
    if (residency.kind == Residency::Kind::none || field.decoder.empty()) continue;
    throw InvalidArgument(
        fmt::format("The samples of field '{}' are decoded on the device each time: leave out the "
                    "residency, or have the host decode.",
                    field.stored.name));
  }
  const auto varying = std::ranges::find_if(facts.fields, &FieldFacts::varies);
  if (residency.kind != Residency::Kind::none && varying != facts.fields.end()) {
    throw InvalidArgument(
        fmt::format("The samples of field '{}' differ from epoch to epoch, so that none can stay on the "
                    "device: leave out the residency.",
                    varying->stored.name));
  }
}

FeedPlan plan_travel(FeedFacts facts, const LoaderOptions& options, const LinkProfile& profile) {
  FeedPlan plan;
  plan.batch = facts.batch;
  plan_fields(plan, facts, options.fields);
  plan_rows(plan, facts, options);

  const std::size_t slot = slot_bytes(plan);
  plan.budget_bytes =
      options.device_budget_bytes != 0 ? options.device_budget_bytes : facts.device.free_bytes / 2;
  if (slot > plan.budget_bytes) {
    throw OutOfMemory("the loader's device memory budget", slot, 0, plan.budget_bytes,
                      "one batch does not fit; use smaller batches or raise the budget");
  }
  plan.table_bytes = table_bytes(plan);
  const std::size_t ring = slot * (options.prefetch_depth + 1);

  std::vector<Choices> choices;
  for (std::size_t f = 0; f < plan.fields.size(); ++f) {
    FieldPlan& field = plan.fields[f];
    choices.push_back(choose_path(field, facts.fields[f], facts, options, profile, plan.batch));
    field.path = choices[f].first.path;
    field.reason = choices[f].first.reason;
  }
  const std::size_t landing = landing_bytes(plan, options.residency);
  const std::size_t needed = ring + plan.table_bytes + landing;
  if (plan.rows() != nullptr && needed > plan.budget_bytes) {
    throw OutOfMemory("the loader's device memory budget", needed, 0, plan.budget_bytes, "rows do not fit");
  }
  const std::size_t available = plan.budget_bytes - std::min(plan.budget_bytes, needed);
  const std::size_t resident = choose_residents_and_leave_room(plan, options, available);
  const std::size_t staged = stage_on_device(plan, choices, options, facts.device, resident, available);
  for (const FieldPlan& field : plan.fields) plan.resident_bytes += field.resident_bytes();
  choose_sources(plan, facts, options);
  const std::size_t others = needed + resident + staged;
  const bool host_orders = std::ranges::any_of(
      plan.fields, [](const FieldPlan& field) { return field.is_listed() || field.in_two_parts(); });
  plan.orders_on_device =
      !options.batch_sampler && !host_orders && others + order_bytes(plan) <= plan.budget_bytes;
  const std::size_t lists = list_bytes(plan);
  const bool has_room = others + kCopyStreams * lists <= plan.budget_bytes && !facts.device.memory_refused;
  if (!plan.orders_on_device && has_room) plan.list_bytes = lists;
  const std::size_t order = plan.orders_on_device ? order_bytes(plan) : 0;
  plan.reserved_bytes = std::min(plan.budget_bytes / kSlotAlignment * kSlotAlignment,
                                 others + order + kCopyStreams * plan.list_bytes);
  lay_out(plan);
  return plan;
}

}  // namespace

FeedPlan plan_feed(const FeedFacts& facts, const LoaderOptions& options, const LinkProfile& profile) {
  check_residency(options.residency, facts);
  FeedFacts without_rows = facts;
  without_rows.rows_refused = true;
  try {
    return plan_travel(facts, options, profile);
  } catch (const OutOfMemory&) {
    // Fields with gaps are to be copied before they travel by themselves.
    if (std::ranges::any_of(facts.fields, &FieldFacts::strided)) throw;
    // Rows need a little device memory more than the fields by themselves.
    return plan_travel(std::move(without_rows), options, profile);
  }
}

}  // namespace penstock
