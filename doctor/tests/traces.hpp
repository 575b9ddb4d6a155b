#pragma once

#include "doctor/read/torch_trace.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace penstock::test {

/// The text comes in parts of at most `most` bytes.
inline Timeline parse_trace(std::string_view text, std::size_t most = SIZE_MAX) {
  auto source = [&](std::span<char> destination) {
    const std::size_t count = std::min({text.size(), destination.size(), most});
    std::memcpy(destination.data(), text.data(), count);
    text.remove_prefix(count);
    return count;
  };
  return parse_torch_trace(source, "x.json");
}

inline std::string trace_text_complaint(std::string_view text, std::size_t most = SIZE_MAX) {
  try {
    static_cast<void>(parse_trace(text, most));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// An event of a trace, with a comma before it; times in microseconds. `args` are the members of its args.
inline std::string trace_event(std::string_view category, std::string_view name, int begin, int duration,
                               std::string_view args = "", int thread = 9) {
  return fmt::format(
      R"(,{{"ph": "X", "cat": "{}", "name": "{}", "pid": 9, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}}}})",
      category, name, thread, begin, duration, args);
}

inline std::string trace_with(std::string_view events) {
  return fmt::format(R"({{"traceEvents": [{{"ph": "M"}}{}]}})", events);
}
inline Timeline trace_of(std::string_view events) { return parse_trace(trace_with(events)); }
inline std::string trace_complaint(std::string_view events) {
  return trace_text_complaint(trace_with(events));
}

}  // namespace penstock::test
