#include "cupti_session.hpp"

#include <cstddef>
#include <cstdio>
#include <iterator>
#include <optional>

namespace penstock::recorder {

namespace {

/// What CUPTI tells of the device, and of ranges.
struct Activity {
  std::int32_t kind;
  const char* name;        ///< null: the recorder does as well without
  std::uint32_t left_out;  ///< of a recording without; 0: no rule looks for it
};
constexpr Activity kActivities[] = {{kActivityCopy, "copies", recording::kWithoutCopies},
                                    {kActivityPeerCopy, "copies between GPUs", 0},
                                    {kActivitySet, "memory sets", 0},
                                    {kActivityKernel, "kernels", recording::kWithoutKernels},
                                    {kActivityMarker, nullptr, 0},
                                    {kActivityContext, nullptr, 0},
                                    {kActivityStream, nullptr, 0}};

/// By CallKind, what a note calls them.
constexpr const char* kCallNames[] = {"launches of kernels",          "calls that copy",
                                      "stream synchronizations",      "device synchronizations",
                                      "event synchronizations",       "calls that pin memory",
                                      "calls that unpin memory",      "allocations of device memory",
                                      "calls that free device memory"};
static_assert(std::size(kCallNames) == static_cast<std::size_t>(CallKind::free) + 1);

/// For how many functions of a kind CUPTI makes callbacks.
struct Answers {
  std::size_t accepted = 0;
  std::size_t refused = 0;
  CuptiResult error = kCuptiSuccess;  ///< the last one

  void add(CuptiResult result) noexcept {
    ++(result == kCuptiSuccess ? accepted : refused);
    if (result != kCuptiSuccess) error = result;
  }
  /// A version of CUPTI may name functions that it does not call back for.
  [[nodiscard]] bool are_refusals() const noexcept { return accepted == 0 && refused > 0; }
};

/// The latest launch through the driver that was read.
struct DriverLaunch {
  std::uint32_t thread = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

}  // namespace

bool CuptiSession::begin(CuptiCallback on_call, CuptiBufferRequested requested,
                         CuptiBufferCompleted completed) noexcept {
  if (!subscribe(on_call)) return false;
  choose_calls();
  if (cupti_.register_callbacks(requested, completed) == kCuptiSuccess) return true;
  file_.note("CUPTI refused the recorder's buffers, so nothing was recorded.");
  if (subscriber_ != nullptr) cupti_.unsubscribe(subscriber_);
  return false;
}

void CuptiSession::enable_records() noexcept {
  enable_activities();
  enable_call_records();
}

void CuptiSession::end() noexcept {
  switch_call_records(false);
  for (const Activity& activity : kActivities) cupti_.disable(activity.kind);
  if (subscriber_ != nullptr) cupti_.unsubscribe(subscriber_);
}

std::uint8_t CuptiSession::kind_of(int domain, std::uint32_t function) const noexcept {
  return function_of(domain, function).kind;
}

InputCall CuptiSession::input_of(int domain, std::uint32_t function) const noexcept {
  return function_of(domain, function).input;
}

void CuptiSession::look_for_doubled(const CuptiCallRecord& launch) noexcept {
  static thread_local DriverLaunch latest;
  if (launch.activity == kActivityDriver) {
    latest = {launch.thread, launch.begin, launch.end};
  } else if (latest.thread == launch.thread && latest.begin >= launch.begin && latest.end <= launch.end) {
    runtime_functions_[launch.function].is_doubled.store(true, std::memory_order_relaxed);
  }
}

void CuptiSession::leave_doubled_launches() noexcept {
  if (cupti_.enable_runtime_call == nullptr) return;
  for (std::uint32_t function = 0; function < kMostFunctions; ++function) {
    if (runtime_functions_[function].is_doubled.exchange(false, std::memory_order_relaxed))
      cupti_.enable_runtime_call(function, 0);
  }
}

const CuptiSession::Function& CuptiSession::function_of(int domain, std::uint32_t function) const noexcept {
  static const Function unknown{};
  if (function >= kMostFunctions) return unknown;
  return domain == kDriverDomain ? driver_functions_[function] : runtime_functions_[function];
}

template <typename Act>
void CuptiSession::for_each_function(const Act& act) const noexcept {
  for (const int domain : {kDriverDomain, kRuntimeDomain}) {
    for (std::uint32_t function = 0; function < kMostFunctions; ++function) {
      const std::uint8_t kind = kind_of(domain, function);
      if (kind != kNotKept) act(domain, function, is_launch(kind));
    }
  }
}

/// Gets the places of calls, unless CUPTI has another subscriber. False if nothing may be recorded at all.
bool CuptiSession::subscribe(CuptiCallback on_call) noexcept {
  const CuptiResult result = cupti_.subscribe(&subscriber_, on_call, nullptr);
  if (result == kCuptiSuccess) return true;
  subscriber_ = nullptr;
  if (result == kCuptiMultipleSubscribers) {
    file_.note(
        "Another profiler was recording the program already, and CUPTI serves only one. So nothing was "
        "recorded. "
        "Run the program without the other one.");
    return false;
  }
  note_no_callbacks(result);
  return true;
}

/// The names tell what a function does, so that new functions and versions of them need no table.
void CuptiSession::find_functions(int domain, Function* functions) noexcept {
  for (std::uint32_t function = 0; function < kMostFunctions; ++function) {
    functions[function].kind = kNotKept;
    const char* name = nullptr;
    if (cupti_.callback_name(domain, function, &name) != kCuptiSuccess || name == nullptr) continue;
    const auto kind = call_kind(name);
    if (!kind) continue;
    functions[function].kind = static_cast<std::uint8_t>(*kind);
    functions[function].input = input_call(domain, name);
  }
}

/// Once CUPTI is in use: before, newer versions may not tell the names.
void CuptiSession::choose_calls() noexcept {
  find_functions(kDriverDomain, driver_functions_);
  find_functions(kRuntimeDomain, runtime_functions_);
  bool any = false;
  for_each_function([&any](int, std::uint32_t, bool) { any = true; });
  if (!any) file_.note("CUPTI does not name CUDA's functions, so no calls were recorded.");
  if (subscriber_ != nullptr) enable_callbacks();
}

/// If CUPTI refuses them all, calls come as records, as if it had refused to be subscribed to.
void CuptiSession::enable_callbacks() noexcept {
  Answers all;
  Answers by_kind[std::size(kCallNames)];
  for_each_function([&](int domain, std::uint32_t function, bool launch) {
    if (launch) return;
    const CuptiResult result = cupti_.enable_callback(1, subscriber_, domain, function);
    all.add(result);
    by_kind[kind_of(domain, function)].add(result);
  });
  if (all.are_refusals()) {
    cupti_.unsubscribe(subscriber_);
    subscriber_ = nullptr;
    return note_no_callbacks(all.error);
  }
  for (std::size_t kind = 0; kind < std::size(kCallNames); ++kind) {
    if (by_kind[kind].are_refusals())
      note_refused(kCallNames[kind], recording::kWithoutCalls, by_kind[kind].error);
  }
  // Copies have the correlation of the driver's call. So they tell whether one of their calls was refused.
  if (by_kind[static_cast<std::size_t>(CallKind::copy)].refused > 0)
    leave_out_refused(recording::kWithoutSomeCopyCalls);
}

void CuptiSession::enable_activities() noexcept {
  for (const Activity& activity : kActivities) {
    const CuptiResult result = cupti_.enable(activity.kind);
    if (result != kCuptiSuccess && activity.name != nullptr)
      note_refused(activity.name, activity.left_out, result);
  }
}

/// With callbacks, only launches need records of calls.
void CuptiSession::enable_call_records() noexcept {
  const CuptiResult refused = switch_call_records(true);
  if (refused == kCuptiSuccess) return;
  const bool calls = subscriber_ == nullptr;
  note_refused(calls ? "calls" : "launches of kernels",
               recording::kWithoutLaunches | (calls ? recording::kWithoutCalls : 0U), refused);
}

/// Records of launches come from the activity interface: a callback for each would cost the program time. A
/// CUPTI before 12.8 cannot choose functions, and gives records of all.
CuptiResult CuptiSession::switch_call_records(bool on) noexcept {
  bool chosen = cupti_.enable_driver_call != nullptr && cupti_.enable_runtime_call != nullptr;
  for_each_function([&](int domain, std::uint32_t function, bool launch) {
    if (!chosen || (!launch && subscriber_ != nullptr)) return;
    const auto enable = domain == kDriverDomain ? cupti_.enable_driver_call : cupti_.enable_runtime_call;
    chosen = enable(function, on ? 1 : 0) == kCuptiSuccess;
  });
  CuptiResult refused = kCuptiSuccess;
  if (chosen) return refused;
  for (const std::int32_t activity : {kActivityDriver, kActivityRuntime}) {
    const CuptiResult result = on ? cupti_.enable(activity) : cupti_.disable(activity);
    if (result != kCuptiSuccess) refused = result;
  }
  return refused;
}

void CuptiSession::note_no_callbacks(CuptiResult error) noexcept {
  char note[160];
  std::snprintf(note, sizeof note,
                "CUPTI refused callbacks, so there are no places of calls (error %d of CUPTI).", error);
  file_.note(note);
}

/// Nobody may take what is missing for healthy.
void CuptiSession::note_refused(const char* what, std::uint32_t left_out, CuptiResult error) noexcept {
  char note[160];
  std::snprintf(note, sizeof note, "CUPTI refused to record %s (error %d of CUPTI)%s.", what, error,
                left_out == 0 ? ", so their time counts as idle" : "");
  file_.note(note);
  leave_out_refused(left_out);
}

void CuptiSession::leave_out_refused(std::uint32_t left_out) noexcept {
  file_.header().left_out |= left_out;
  file_.header().refused |= left_out;
}

}  // namespace penstock::recorder
