#include <penstock/core/error.hpp>
#include <penstock/loader/feed_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace penstock {

ChannelFactors channel_factors(const Field& field, const FieldOptions& options) {
  const std::size_t axis = options.channel_axis;
  const auto extent = [&](const std::vector<float>& values, const char* what) -> std::size_t {
    if (values.size() <= 1) return 1;
    if (axis >= field.shape.size() || field.shape[axis] != values.size()) {
      throw InvalidArgument(fmt::format(
          "Field '{}' ({} {}) does not have {} channels in axis {}, as its {} needs: give one value, or one "
          "for each index of channel_axis.",
          field.name, dtype_name(field.dtype), format_shape(field.shape), values.size(), axis, what));
    }
    return values.size();
  };
  const std::size_t channels = std::max(extent(options.scale, "scale"), extent(options.shift, "shift"));
  const auto spread = [&](std::vector<float> values) {
    if (values.size() == 1) values.resize(channels, values.front());
    return values;
  };
  ChannelFactors factors{.scale = spread(options.scale),
                         .shift = spread(options.shift),
                         .channels = static_cast<std::uint32_t>(channels)};
  if (channels > 1) {
    const auto after = field.shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1;
    factors.channel_elements = std::accumulate(after, field.shape.end(), std::size_t{1}, std::multiplies<>());
  }
  return factors;
}

namespace {

std::string describe_travel(const FieldPlan& field) {
  if (!field.streams()) return ", resident";
  std::string text;
  if (field.resident_samples > 0) {
    text += fmt::format(", {:.0f} % resident", 100.0 * static_cast<double>(field.resident_samples) /
                                                   static_cast<double>(field.samples));
  }
  if (field.by_decoder()) return text + fmt::format(", decoded on the device by {}", field.decoder);
  text += fmt::format(", {} gather", gather_path_name(field.path));
  return field.reason.empty() ? text : text + fmt::format(" ({})", field.reason);
}

}  // namespace

std::string FieldPlan::describe(const FieldPlan* rows) const {
  std::string text =
      fmt::format("{}: {} {}", stored.name, dtype_name(stored.dtype), format_shape(stored.shape));
  if (stored.narrowed_from) text += fmt::format(" (narrowed from {})", dtype_name(*stored.narrowed_from));
  if (is_column()) text += fmt::format(", in rows of {} bytes", rows->sample_bytes);
  text += describe_travel(is_column() ? *rows : *this);
  if (!converts()) return text;
  text += fmt::format(", delivered as {}", dtype_name(to));
  if (factors.empty()) return text;
  return text + (factors.channels == 1 ? std::string(", scaled")
                                       : fmt::format(", scaled by channel ({})", factors.channels));
}

std::size_t FeedPlan::delivered_sample_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const FieldPlan& field : fields) bytes += field.delivered_bytes;
  return bytes;
}

const FieldPlan* FeedPlan::rows() const noexcept {
  return !fields.empty() && fields.back().is_rows() ? &fields.back() : nullptr;
}

std::size_t FeedPlan::column_samples(const FieldPlan& column) const noexcept {
  const std::size_t step = kSlotAlignment / std::gcd(kSlotAlignment, column.delivered_bytes);
  return (batch + step - 1) / step * step;
}

std::span<const FieldPlan> FeedPlan::delivered() const noexcept {
  return std::span(fields).first(fields.size() - (rows() == nullptr ? 0 : 1));
}

bool FeedPlan::gathers_on_host() const noexcept { return std::ranges::any_of(fields, &FieldPlan::by_host); }

std::vector<std::string> FeedPlan::describe() const {
  std::vector<std::string> lines;
  for (const FieldPlan& field : delivered()) lines.push_back(field.describe(rows()));
  return lines;
}

}  // namespace penstock
