#include "feed_fields.hpp"

#include "commands.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace penstock::cli {

namespace {

/// The parts of "images=float16". Without a field it is for all fields.
struct FieldType {
  std::string field;
  DType type = DType::uint8;
};

FieldType parse_field_type(const std::string& text) {
  const std::size_t at = text.find('=');
  const std::string name = at == std::string::npos ? text : text.substr(at + 1);
  if (name.empty() || at == 0) throw UsageError(fmt::format("--to {}: expected TYPE or FIELD=TYPE.", text));
  try {
    return {at == std::string::npos ? "" : text.substr(0, at), parse_dtype(name)};
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--to: {}", error.what()));
  }
}

std::string fields_text(const Dataset& dataset) {
  std::string text;
  for (std::size_t i = 0; i < dataset.field_count(); ++i) {
    const Field& field = dataset.field(i);
    text += fmt::format("{}{} is {} {}", i == 0 ? ": " : ", ", field.name, dtype_name(field.dtype),
                        format_shape(field.shape));
  }
  return text;
}

/// The fields that can become that, scalars aside.
std::vector<std::string> fields_for(const Dataset& dataset, DType type) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < dataset.field_count(); ++i) {
    const Field& field = dataset.field(i);
    if (!field.shape.empty() && can_widen(field.dtype, type)) names.push_back(field.name);
  }
  if (!names.empty()) return names;
  throw UsageError(fmt::format("--to {}: no field can become that without loss, scalars aside{}.",
                               dtype_name(type), fields_text(dataset)));
}

}  // namespace

std::vector<FieldOptions> field_options(const Dataset& dataset, const std::vector<std::string>& to) {
  std::vector<FieldType> wishes;
  std::ranges::transform(to, std::back_inserter(wishes), parse_field_type);
  std::map<std::string, DType> types;
  for (const FieldType& wish : wishes) {
    if (!wish.field.empty()) continue;
    for (const std::string& field : fields_for(dataset, wish.type)) types[field] = wish.type;
  }
  for (const FieldType& wish : wishes) {
    if (!wish.field.empty()) types[wish.field] = wish.type;
  }
  std::vector<FieldOptions> options;
  for (const auto& [field, type] : types) options.push_back({.name = field, .to = type});
  return options;
}

}  // namespace penstock::cli
