#pragma once

#include <string>
#include <string_view>

namespace penstock {

/// `text` as a terminal or a log may show it. Control characters but the newline, characters that turn the
/// direction of writing, and bytes that are not UTF-8 become \xNN, byte by byte.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace penstock
