#pragma once

#include "doctor/rules/device_view.hpp"
#include "doctor/rules/findings.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// What a recording must hold, or tell, for a rule to judge it. If it does not, Diagnosis::not_examined names
/// the rule.
enum class Need : std::uint16_t {
  calls = 1U << 0U,                  ///< all calls of CUDA
  steps = 1U << 1U,                  ///< one step at least
  steady_steps = 1U << 2U,           ///< kSteadySteps of them
  recorded_steady_steps = 1U << 3U,  ///< the same, unless it is a trace: what a trace is of was chosen
  loader_waits = 1U << 4U,           ///< in which `next()` of a loader threads are
  looks = 1U << 5U,                  ///< what threads do outside calls
  memory_kinds = 1U << 6U,           ///< the kind of memory that a copy's source is in
  sizes = 1U << 7U,                  ///< the bytes of copies
  contents = 1U << 8U,               ///< which copies have the same contents
  types = 1U << 9U,                  ///< types of the values that operators convert
};

/// Several needs.
class Needs {
 public:
  template <typename... More>
  constexpr explicit Needs(More... needs) : bits_((0U | ... | static_cast<unsigned>(needs))) {}
  [[nodiscard]] constexpr bool has(Need need) const { return (bits_ & static_cast<unsigned>(need)) != 0; }

 private:
  unsigned bits_;
};

/// What to do, as code. Empty: there is nothing.
struct Advice {
  std::string_view change;         ///< without penstock
  std::string_view with_penstock;  ///< with it
};

/// The rule's row in docs/doctor-reference.md.
struct RuleRow {
  std::string_view found_if;
  std::string_view least_gain;
  std::string_view most_gain;
};

/// One rule of the doctor: all that the others must know of it. To add a rule, write its function and its
/// record in a file of rules, and a test; CONTRIBUTING.md says how docs and schema get it.
struct Rule {
  std::string_view id;
  Needs needs;
  /// A pure function. nullopt: nothing was found.
  std::optional<Finding> (*find)(const DeviceView&);
  /// Of a program in Python, unless the finding has advice of its own.
  Advice advice;
  /// The same in C++. nullopt: the rule finds nothing in compiled programs, or the finding has advice of its
  /// own.
  std::optional<Advice> compiled_advice = std::nullopt;
  /// The change leaves fewer bytes to copy, so its gain is bounded by the kernels of a step alone. Otherwise
  /// the copies still have to cross the link beside them.
  bool moves_less = false;
  /// The change may save or add kernels, so runs before and after it are compared whatever their kernels.
  bool changes_kernels = false;
  /// Programs without what the rule needs have nothing to find: a later run need not have been examined for
  /// it.
  bool may_be_unexamined = false;
  RuleRow row;
};

/// The rules about what the GPU waits for while nothing is queued, about copies, and about calls.
[[nodiscard]] std::span<const Rule> idle_rules();
[[nodiscard]] std::span<const Rule> copy_rules();
[[nodiscard]] std::span<const Rule> call_rules();

/// All rules, in the order of the docs.
[[nodiscard]] std::span<const Rule> all_rules();
/// Null: there is no such rule.
[[nodiscard]] const Rule* find_rule(std::string_view id);
/// The ids of those that need it, and then `others`.
[[nodiscard]] std::vector<std::string> ids_that_need(Need need, std::vector<std::string> others = {});

}  // namespace penstock
