#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace penstock {

namespace {

/// Digits after the point that make three digits in all, also if the value is rounded up.
int decimals(double value) { return value < 9.995 ? 2 : value < 99.95 ? 1 : 0; }

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  const auto whole = [&] { return value == std::floor(value); };
  std::size_t unit = 0;
  while (value >= (whole() ? 1024 : 1023.5) && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, whole() ? 0 : decimals(value), units[unit]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  const auto [scale, unit] = size < 999.5e-9   ? std::pair{1e9, "ns"}
                             : size < 999.5e-6 ? std::pair{1e6, "µs"}
                             : size < 999.5e-3 ? std::pair{1e3, "ms"}
                                               : std::pair{1.0, "s"};
  return fmt::format("{:.{}f} {}", seconds * scale, decimals(size * scale), unit);
}

std::string format_gbps(double bytes_per_second) {
  const double rate = bytes_per_second / kGB;
  if (rate < 0.01 && rate > 0) return fmt::format("{:.2g} GB/s", rate);
  return fmt::format("{:.{}f} GB/s", rate, decimals(rate));
}

std::uint64_t parse_bytes(std::string_view text) {
  const auto fail = [&] {
    throw InvalidArgument(
        fmt::format("'{}' is not a size; write bytes, or a number with a unit as in 512KiB, "
                    "1.5GiB or 16MB",
                    text));
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) fail();
  std::string unit;
  for (const char c : std::string_view(end, text.data() + text.size() - end)) {
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const auto power = std::string_view("kmgt").find(unit[0]);
    if (power == std::string_view::npos) fail();
    const std::string_view rest = std::string_view(unit).substr(1);
    if (!rest.empty() && rest != "b" && rest != "ib") fail();
    scale = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  if (number * scale > 9.2e18) fail();
  return static_cast<std::uint64_t>(std::llround(number * scale));
}

}  // namespace penstock
