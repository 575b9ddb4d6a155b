#pragma once

#include "doctor/rules/device_view.hpp"
#include "doctor/rules/findings.hpp"
#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/timeline.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace penstock {

/// What cannot be judged at all, because kernels, copies or calls were not recorded. Rules that these name
/// are not asked: what they say would be about the records that are left.
[[nodiscard]] std::vector<NotExamined> not_recorded(const Timeline& timeline);

/// What nobody looked at, and how to record it, with `not_recorded`. A recording of our own lacks other
/// things than a trace. `window`: what the account is of.
[[nodiscard]] std::vector<NotExamined> not_examined(const Timeline& timeline, const HostActivity& host,
                                                    TimeSpan window);

/// What other threads' waits for the device may cost. nullopt: about nothing.
[[nodiscard]] std::optional<NotExamined> waits_of_other_threads(const DeviceView& view);

/// The first of them that has this name, of a finding or of a part of the account. Null: none has.
[[nodiscard]] const NotExamined* find_not_examined(const std::vector<NotExamined>& list,
                                                   std::string_view name);

}  // namespace penstock
