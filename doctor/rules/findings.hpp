#pragma once

#include "doctor/timeline/device_account.hpp"
#include "doctor/timeline/timeline.hpp"

#include <penstock/transfer/link_profile.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Where a finding's calls were made.
struct FindingPlace {
  /// "train.py(12): main", 12 being the line of the call, or the function's first line in a trace of
  /// PyTorch's profiler; empty: not recorded.
  std::string function;
  std::string op;  ///< the outermost operator of PyTorch, such as "aten::item"; empty: none
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;  ///< in all, of the copies or of the calls, as the finding's text says
  /// In all, that the device idles after these calls. nullopt: the finding is not about that.
  std::optional<double> idle_seconds = std::nullopt;
  /// `function`, and the program's own frames that called it, the innermost first: of several stacks, the one
  /// of most calls. Empty: `function` is, too.
  std::vector<std::string> stack = {};
};

/// What a change would save of a step, in seconds. The truth is expected between the two.
struct GainRange {
  double low = 0;
  double high = 0;
};

enum class Severity : std::uint8_t { high, medium, note };
[[nodiscard]] std::string_view severity_name(Severity severity) noexcept;

/// One result of the rules in docs/doctor-reference.md.
struct Finding {
  std::string id;
  Severity severity = Severity::note;
  std::uint16_t device = 0;
  std::string text;             ///< the evidence, with its numbers
  std::string meaning;          ///< why that takes time
  std::string change;           ///< as code, without penstock; empty: none
  std::string penstock_change;  ///< as code, with penstock; empty: none
  double count = 0;             ///< of a step
  double bytes = 0;             ///< of a step
  double seconds = 0;           ///< of a step
  GainRange gain;
  /// The longest first. Waits for the device: those first that hold it up most.
  std::vector<FindingPlace> places;
};

/// What the recording does not tell. Nothing is known about these, good or bad.
struct NotExamined {
  std::vector<std::string> names;  ///< ids of findings, and names of the account's parts
  std::string text;                ///< a sentence that says why, and how to record it
};

struct Diagnosis {
  std::vector<DeviceAccount> accounts;
  std::vector<Finding> findings;  ///< by what they gain, the most first
  std::vector<NotExamined> not_examined;

  /// Null if there is none.
  [[nodiscard]] const DeviceAccount* account(std::uint16_t device) const;
};

/// The ids of all rules.
[[nodiscard]] std::span<const std::string_view> finding_ids();

/// Applies all rules to each device. `profile` is what `penstock link` measured on the machine of the
/// recording, which tells how short a step may become and what a copy would take. Null: not known. A pure
/// function of both.
[[nodiscard]] Diagnosis diagnose_timeline(const Timeline& timeline, const LinkProfile* profile = nullptr);

}  // namespace penstock
