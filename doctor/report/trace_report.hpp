#pragma once

#include "doctor/rules/findings.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

/// What the doctor says about a trace.
struct TraceReport {
  std::string file;
  std::optional<std::int64_t> process;  ///< of a recording: its number
  std::optional<std::uint64_t> rank;    ///< of a trace that tells it
  std::uint64_t events = 0;
  double recorded_seconds = 0;  ///< from the first to the last record
  Diagnosis diagnosis;
  std::vector<std::string> verified;  ///< lines that compare it with the changed program of --verify
};

/// Words that the text and the page share. Names of the trace stay in one line, but are not escaped.
[[nodiscard]] std::string seconds_text(double seconds);
/// "34.3 %"
[[nodiscard]] std::string share_text(double seconds, double whole);
/// Names come from the trace; one must not look like several lines.
[[nodiscard]] std::string one_line(std::string text);
/// "GPU 0 (H200): 20 steps of 2.35 ms"
[[nodiscard]] std::string window_text(const DeviceAccount& account);
/// "copies to the GPU a step: 2, 7.63 MiB at ..."
[[nodiscard]] std::string copies_text(const DeviceAccount& account, CopyDirection direction);
/// "pageable-copies"; with its GPU, if there are several.
[[nodiscard]] std::string finding_name(const Finding& finding, const Diagnosis& diagnosis);
/// "train.py(12): main, aten::to: 40 times, 153 MiB, 16.1 ms"
[[nodiscard]] std::string place_text(const FindingPlace& place);
/// Of a step. A gain below is next to nothing.
inline constexpr double kNothingToGain = 0.02;
/// False if the gain is next to nothing. `step` in seconds.
[[nodiscard]] bool gains(const Finding& finding, double step);
/// "at most 804 µs of a step, 34.3 %"; of the recording, if it has no steps.
[[nodiscard]] std::string gain_text(const Finding& finding, const Diagnosis& diagnosis);
/// What a report says in place of findings.
[[nodiscard]] std::string nothing_found_text(const Diagnosis& diagnosis);
/// Seconds of a step of a device.
[[nodiscard]] double step_of(const Diagnosis& diagnosis, std::uint16_t device);

/// Where a call is, from a text such as "train.py(12): main": the text as `function`, and its `file` and
/// `line`. These are null if it has none, as an unknown place.
[[nodiscard]] nlohmann::ordered_json place_json(std::string_view function);

[[nodiscard]] std::string trace_text(const TraceReport& report, std::size_t columns);
[[nodiscard]] nlohmann::ordered_json trace_json(const TraceReport& report);
/// As files have it.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value);

}  // namespace penstock::cli
