#include <penstock/core/error.hpp>
#include <penstock/loader/loader.hpp>

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
          "Field '{}' ({} {}) has no {} channels in axis {}, as its {} needs: give one value, or one for "
          "each extent of channel_axis.",
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

}  // namespace penstock
