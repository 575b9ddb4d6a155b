#include "loader/plan_rows.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/data/readers.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {

namespace {

constexpr const char* kRowsName = "(rows)";

bool can_be_column(const FieldFacts& facts) {
  return (facts.in_memory || facts.strided) && !facts.file_mapping && facts.sample_bytes <= kMostColumnBytes;
}

std::vector<Field> stored_columns(const FeedPlan& plan) {
  std::vector<Field> fields;
  for (const FieldPlan& field : plan.fields) {
    if (field.is_column()) fields.push_back(field.stored);
  }
  return fields;
}

std::vector<FieldReaderPtr> readers_of(const Dataset& dataset) {
  std::vector<FieldReaderPtr> readers;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) readers.push_back(dataset.reader(f));
  return readers;
}

/// Names of datasets are unique, and the users' own may be any.
std::string name_beside(const Dataset& dataset) {
  std::string name = kRowsName;
  const auto is_taken = [&] {
    for (std::size_t f = 0; f < dataset.field_count(); ++f) {
      if (dataset.field(f).name == name) return true;
    }
    return false;
  };
  while (is_taken()) name += "'";
  return name;
}

}  // namespace

std::vector<std::size_t> choose_columns(const FeedFacts& facts, const LoaderOptions& options) {
  if (facts.rows_refused || options.data_may_change || options.copy_limit_bytes == 0) return {};
  if (options.gather == GatherPath::copy_engine) return {};
  std::vector<std::size_t> columns;
  for (std::size_t f = 0; f < facts.fields.size(); ++f) {
    if (can_be_column(facts.fields[f])) columns.push_back(f);
  }
  if (columns.size() < 2) return {};
  const std::size_t budget = options.row_budget_bytes != 0
                                 ? options.row_budget_bytes
                                 : LoaderOptions::default_row_budget(facts.host_bytes);
  const std::size_t most_row_bytes = budget / static_cast<std::size_t>(facts.fields.front().samples);
  std::ranges::sort(columns, {}, [&](std::size_t f) { return std::pair(facts.fields[f].sample_bytes, f); });
  const auto row_bytes = [&] {
    std::vector<Field> fields;
    for (const std::size_t f : columns) fields.push_back(facts.fields[f].stored);
    return lay_out_row(fields).row_bytes;
  };
  while (columns.size() > 1 && row_bytes() > most_row_bytes) columns.pop_back();
  if (columns.size() < 2) return {};
  std::ranges::sort(columns);
  return columns;
}

void plan_rows(FeedPlan& plan, FeedFacts& facts, const LoaderOptions& options) {
  const std::vector<std::size_t> columns = choose_columns(facts, options);
  if (columns.empty()) return;
  for (const std::size_t f : columns) plan.fields[f].kind = FieldPlan::Kind::column;
  const RowLayout layout = lay_out_row(stored_columns(plan));
  for (std::size_t c = 0; c < columns.size(); ++c) plan.fields[columns[c]].row_offset = layout.offsets[c];

  FieldFacts rows;
  rows.stored = {.name = kRowsName, .dtype = DType::uint8, .shape = {layout.row_bytes}};
  rows.samples = facts.fields.front().samples;
  rows.sample_bytes = layout.row_bytes;
  rows.in_memory = rows.aligned = true;
  rows.allocation_bytes = rows.allocation_used_bytes = rows.bytes();

  FieldPlan& planned = plan.fields.emplace_back();
  planned.kind = FieldPlan::Kind::rows;
  planned.stored = rows.stored;
  planned.to = rows.stored.dtype;
  planned.samples = rows.samples;
  planned.sample_elements = planned.sample_bytes = layout.row_bytes;
  facts.fields.push_back(std::move(rows));
}

std::vector<RowValue> row_values(const FeedPlan& plan) {
  std::vector<RowValue> values;
  for (const FieldPlan& column : plan.fields) {
    if (!column.is_column()) continue;
    const ChannelFactors& factors = column.factors;
    for (std::size_t e = 0; e < column.sample_elements; ++e) {
      const std::size_t channel = e / factors.channel_elements % factors.channels;
      RowValue& value = values.emplace_back();
      value.destination = column.slot_offset + e * dtype_bytes(column.to);
      value.destination_stride = static_cast<std::uint32_t>(column.delivered_bytes);
      value.row_offset = static_cast<std::uint32_t>(column.row_offset + e * dtype_bytes(column.stored.dtype));
      value.from = column.stored.dtype;
      value.to = column.to;
      value.scaled = !factors.empty();
      if (!factors.scale.empty()) value.scale = factors.scale[channel];
      // Adding -0 changes no value, unlike adding 0 to -0.
      value.shift = factors.shift.empty() ? -0.0F : factors.shift[channel];
    }
  }
  std::ranges::sort(values, {}, &RowValue::row_offset);
  return values;
}

Dataset with_rows(const Dataset& dataset, const FeedPlan& plan) {
  if (plan.rows() == nullptr) return dataset;
  std::vector<FieldReaderPtr> readers = readers_of(dataset);
  std::vector<FieldReaderPtr> columns;
  for (std::size_t f = 0; f < readers.size(); ++f) {
    if (plan.fields[f].is_column()) columns.push_back(readers[f]);
  }
  readers.push_back(read_rows(name_beside(dataset), std::move(columns), lay_out_row(stored_columns(plan))));
  return Dataset(std::move(readers));
}

Dataset with_rows(const Dataset& dataset, const FeedPlan& plan, std::span<const std::byte> rows,
                  const std::shared_ptr<const void>& keep_alive) {
  std::vector<FieldReaderPtr> readers = readers_of(dataset);
  const FieldPlan& planned = *plan.rows();
  for (std::size_t f = 0; f < readers.size(); ++f) {
    const FieldPlan& column = plan.fields[f];
    if (!column.is_column()) continue;
    const std::size_t all_but_last = rows.size() - planned.sample_bytes;
    readers[f] =
        read_strided(column.stored, rows.subspan(column.row_offset, all_but_last + column.sample_bytes),
                     planned.sample_bytes, keep_alive);
  }
  Field field = planned.stored;
  field.name = name_beside(dataset);
  readers.push_back(read_array(std::move(field), rows, keep_alive));
  return Dataset(std::move(readers));
}

}  // namespace penstock
