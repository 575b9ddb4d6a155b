#include "feed_fields.hpp"

#include "commands.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock::cli {

namespace {

/// The parts of "images=float16". Without a field it is for all fields.
struct FieldType {
  std::string field;
  std::string name;
};

FieldType parse_field_type(const std::string& text) {
  const std::size_t at = text.find('=');
  FieldType type =
      at == std::string::npos ? FieldType{{}, text} : FieldType{text.substr(0, at), text.substr(at + 1)};
  if (type.name.empty() || at == 0) {
    throw UsageError(fmt::format("--to {}: expected TYPE or FIELD=TYPE.", text));
  }
  return type;
}

DType parse_type(const std::string& name) {
  try {
    return parse_dtype(name);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--to: {}", error.what()));
  }
}

std::size_t find_field(const Dataset& dataset, const std::string& name) {
  try {
    return dataset.field_index(name);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--to: {}", error.what()));
  }
}

class Fields {
 public:
  explicit Fields(const Dataset& dataset) : dataset_(dataset), options_(dataset.field_count()) {
    for (std::size_t i = 0; i < options_.size(); ++i) options_[i].name = dataset.field(i).name;
  }

  void convert_all(const std::string& name) {
    const DType type = parse_type(name);
    bool any = false;
    for (std::size_t i = 0; i < options_.size(); ++i) {
      const Field& field = dataset_.field(i);
      if (field.shape.empty() || !can_widen(field.dtype, type)) continue;
      options_[i].to = type;
      any = true;
    }
    if (!any) {
      throw UsageError(fmt::format("--to {}: no field can become that without loss, scalars aside{}.", name,
                                   fields_text()));
    }
  }

  void convert(std::size_t field, const std::string& name) {
    const DType type = parse_type(name);
    const Field& stored = dataset_.field(field);
    if (!can_widen(stored.dtype, type)) {
      throw UsageError(fmt::format("--to {}={}: {} cannot become {} without loss.", stored.name, name,
                                   dtype_name(stored.dtype), name));
    }
    options_[field].to = type;
  }

  [[nodiscard]] std::vector<FieldOptions> take() {
    std::erase_if(options_, [](const FieldOptions& field) { return !field.to; });
    return std::move(options_);
  }

 private:
  [[nodiscard]] std::string fields_text() const {
    std::string text;
    for (std::size_t i = 0; i < dataset_.field_count(); ++i) {
      const Field& field = dataset_.field(i);
      text += fmt::format("{}{} is {} {}", i == 0 ? ": " : ", ", field.name, dtype_name(field.dtype),
                          format_shape(field.shape));
    }
    return text;
  }

  const Dataset& dataset_;
  std::vector<FieldOptions> options_;
};

}  // namespace

std::vector<FieldOptions> field_options(const Dataset& dataset, const std::vector<std::string>& to) {
  std::vector<FieldType> types;
  types.reserve(to.size());
  for (const std::string& text : to) types.push_back(parse_field_type(text));
  Fields fields(dataset);
  // Types for all fields come first, so that those for one field take precedence.
  for (const FieldType& type : types) {
    if (type.field.empty()) fields.convert_all(type.name);
  }
  for (const FieldType& type : types) {
    if (!type.field.empty()) fields.convert(find_field(dataset, type.field), type.name);
  }
  return fields.take();
}

}  // namespace penstock::cli
