#include "feed_fields.hpp"

#include "commands.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>

namespace penstock::cli {

namespace {

/// The parts of "images=float16". Without a field it is for all fields.
struct FieldValue {
  std::string field;
  std::string value;
};

FieldValue parse_wish(const char* option, const std::string& text) {
  const std::size_t at = text.find('=');
  FieldValue value =
      at == std::string::npos ? FieldValue{{}, text} : FieldValue{text.substr(0, at), text.substr(at + 1)};
  if (value.value.empty() || at == 0) {
    throw UsageError(fmt::format("{} {}: expected VALUE or FIELD=VALUE.", option, text));
  }
  return value;
}

std::vector<float> parse_numbers(const char* option, std::string_view text) {
  std::vector<float> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    float number = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || rest != part.data() + part.size() || !std::isfinite(number)) {
      throw UsageError(fmt::format(
          "{}: '{}' is not a number; give one, or one for each channel: 0.1,0.2,0.3.", option, part));
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

DType parse_type(const std::string& name) {
  try {
    return parse_dtype(name);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--to: {}", error.what()));
  }
}

std::size_t find_field(const Dataset& dataset, const char* option, const std::string& name) {
  try {
    return dataset.field_index(name);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

bool is_scaled(const FieldOptions& field) { return field.to && is_model_float(*field.to); }

using ApplyToAll = std::function<void(const std::string& value)>;
using Apply = std::function<void(std::size_t field, const std::string& value)>;

/// Applies values for all fields first, so that values for one field take precedence.
void apply_values(const Dataset& dataset, const char* option, const std::vector<std::string>& texts,
                  const ApplyToAll& apply_to_all, const Apply& apply) {
  std::vector<FieldValue> values;
  values.reserve(texts.size());
  for (const std::string& text : texts) values.push_back(parse_wish(option, text));
  for (const FieldValue& value : values) {
    if (value.field.empty()) apply_to_all(value.value);
  }
  for (const FieldValue& value : values) {
    if (!value.field.empty()) apply(find_field(dataset, option, value.field), value.value);
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

  void adjust_all(const char* option, std::vector<float> FieldOptions::* values, const std::string& text) {
    const std::vector<float> numbers = parse_numbers(option, text);
    bool any = false;
    for (FieldOptions& field : options_) {
      if (!is_scaled(field)) continue;
      field.*values = numbers;
      any = true;
    }
    if (!any) throw UsageError(needs_float(option));
  }

  void adjust(const char* option, std::vector<float> FieldOptions::* values, std::size_t field,
              const std::string& text) {
    if (!is_scaled(options_[field])) throw UsageError(needs_float(option));
    options_[field].*values = parse_numbers(option, text);
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

  static std::string needs_float(const char* option) {
    return fmt::format("{} needs a field that --to delivers as float32, float16 or bfloat16.", option);
  }

  const Dataset& dataset_;
  std::vector<FieldOptions> options_;
};

}  // namespace

std::vector<FieldOptions> field_options(const Dataset& dataset, const std::vector<std::string>& to,
                                        const std::vector<std::string>& scale,
                                        const std::vector<std::string>& shift) {
  Fields fields(dataset);
  apply_values(
      dataset, "--to", to, [&](const std::string& value) { fields.convert_all(value); },
      [&](std::size_t field, const std::string& value) { fields.convert(field, value); });
  const auto adjust = [&](const char* option, const std::vector<std::string>& texts,
                          std::vector<float> FieldOptions::* values) {
    apply_values(
        dataset, option, texts, [&](const std::string& value) { fields.adjust_all(option, values, value); },
        [&](std::size_t field, const std::string& value) { fields.adjust(option, values, field, value); });
  };
  adjust("--scale", scale, &FieldOptions::scale);
  adjust("--shift", shift, &FieldOptions::shift);
  return fields.take();
}

}  // namespace penstock::cli
