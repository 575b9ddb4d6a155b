#pragma once

#include "cupti.hpp"

namespace penstock::recorder {

/// Calls `before` when other code of the process calls cuptiSubscribe, and then lets it. The process's
/// libraries call it through tables of addresses, in which it is replaced; those that are loaded later are
/// seen at the next call of this function. CUPTI has one subscriber, so a recorder that stays would take the
/// program's own profiler its GPU.
void watch_for_subscribers(const Cupti& cupti, void (*before)()) noexcept;

}  // namespace penstock::recorder
