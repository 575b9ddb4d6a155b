#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace penstock {

/// The number that is all of the text; `base` as of std::from_chars. nullopt: it is something else, or too
/// large for a Number.
template <typename Number, typename... Base>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text, Base... base) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc{} && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace penstock
