#pragma once

#include <string>
#include <string_view>

namespace penstock {

/// `text` as a terminal or a log may show it. Three kinds of bytes become \xNN: control characters except the
/// newline, characters that turn the direction of writing, and bytes that are not UTF-8.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace penstock
