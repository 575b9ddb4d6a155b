#include "run/copies.hpp"

#include "core/shared/start_thread.hpp"
#include "run/device_copier.hpp"
#include "run/figures_file.hpp"
#include "run/interpose.hpp"
#include "run/size_choice.hpp"

#include <penstock/core/fork.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::run {

namespace {

std::atomic<bool> ended{false};
thread_local bool inside = false;

/// What the process has, from its first copy on. Never destroyed: threads may copy until the process ends.
struct State {
  explicit State(const void* real) : library(library_of(real)), driver(library) {
    std::atexit([] { ended = true; });  // before the driver ends, which the program loaded earlier
  }

  const std::uint64_t generation = fork_generation();
  const std::string library;
  const Driver driver;
  FiguresFile figures;
  std::mutex mutex;
  std::map<Ordinal, std::shared_ptr<DeviceCopier>> devices;  ///< guarded by the mutex
};

std::atomic<State*> the_state{nullptr};

State& state_for(const void* real) {
  if (State* const state = the_state) return *state;
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  if (the_state == nullptr) the_state = new State(real);
  return *the_state;
}

/// Retained, and not given back. Null if the device has none that is active.
Context primary_context(const Driver& driver, Ordinal device) {
  unsigned flags = 0;
  int active = 0;
  Context context = nullptr;
  if (driver.primary_ctx_get_state(device, &flags, &active) != kSuccess || active == 0) return nullptr;
  return driver.primary_ctx_retain(&context, device) == kSuccess ? context : nullptr;
}

/// The copier of the current context. Null if that is not the primary context of its device.
std::shared_ptr<DeviceCopier> current_copier(State& state) {
  Context context = nullptr;
  Ordinal device = -1;
  if (state.driver.ctx_get_current(&context) != kSuccess || context == nullptr ||
      state.driver.ctx_get_device(&device) != kSuccess) {
    return nullptr;
  }
  const std::lock_guard lock(state.mutex);
  std::shared_ptr<DeviceCopier>& copier = state.devices[device];
  if (copier == nullptr) {
    const Context primary = primary_context(state.driver, device);
    if (primary == nullptr) return nullptr;
    copier = std::make_shared<DeviceCopier>(state.library, device, primary);
  }
  return copier->context() == context ? copier : nullptr;
}

/// What the driver says about an address.
struct Pointer {
  enum class Type : unsigned { pageable = 0, host = 1, device = 2 };

  Context context = nullptr;  ///< null for memory of no one context
  Type type = Type::pageable;
  unsigned managed = 0;
  Ordinal device = -1;
};

/// True if the driver knows both ends of [address, address + bytes), and `is` holds for them.
bool are_ends(const Driver& driver, Address address, std::size_t bytes,
              FunctionRef<bool(const Pointer&)> is) {
  constexpr std::array kAttributes = {1, 2, 8, 9};  // CUpointer_attribute, as Pointer has them
  for (const Address at : {address, address + bytes - 1}) {
    Pointer pointer;
    std::array<void*, 4> answers = {&pointer.context, &pointer.type, &pointer.managed, &pointer.device};
    if (driver.pointer_get_attributes(4, kAttributes.data(), answers.data(), at) != kSuccess) return false;
    if (pointer.managed != 0 || !is(pointer)) return false;
  }
  return true;
}

bool is_pageable(const Driver& driver, Address address, std::size_t bytes) {
  return are_ends(driver, address, bytes,
                  [](const Pointer& pointer) { return pointer.type == Pointer::Type::pageable; });
}

/// True for memory of the copier's device, and of no other context.
bool is_memory_of(const DeviceCopier& copier, const Driver& driver, Address address, std::size_t bytes) {
  return are_ends(driver, address, bytes, [&](const Pointer& pointer) {
    return pointer.type == Pointer::Type::device && pointer.device == copier.device() &&
           (pointer.context == nullptr || pointer.context == copier.context());
  });
}

bool is_capturing(const Driver& driver, Stream stream) {
  int status = 0;
  return driver.stream_is_capturing(stream, &status) != kSuccess || status != 0;
}

bool is_of_context(const Driver& driver, Stream stream, Context context) {
  const bool is_default = reinterpret_cast<std::uintptr_t>(stream) <= 2;
  Context of = nullptr;
  return is_default || (driver.stream_get_ctx(stream, &of) == kSuccess && of == context);
}

/// Who makes the copies of a call, and which way each goes.
struct Plan {
  std::shared_ptr<DeviceCopier> copier = nullptr;
  std::vector<bool> to_host;
};

/// What `reason` says about each run of the call, if it says the same; otherwise `form`, as a call is taken
/// or passed on as a whole. A run that is the first of its size has no other reason against it.
template <typename ReasonOf>
std::optional<Reason> reason_of_all(const CopyCall& call, ReasonOf reason) {
  const std::optional<Reason> all = reason(call.runs.front());
  bool first = all == Reason::first;
  for (const Run& run : call.runs.subspan(1)) {
    const std::optional<Reason> of_this = reason(run);
    const bool is_good = !of_this || of_this == Reason::first;
    if (is_good ? all && all != Reason::first : of_this != all) return Reason::form;
    first |= of_this == Reason::first;
  }
  return first ? Reason::first : all;
}

std::optional<Reason> reason_by_size(const CopyCall& call) {
  const auto small = [](const Run& run) {
    return run.bytes < kSmallestCopy ? std::optional(Reason::small) : std::nullopt;
  };
  const std::optional<Reason> reason = reason_of_all(call, small);
  return !reason && call.form == Form::other ? Reason::form : reason;
}

std::optional<Reason> reason_by_memory(State& state, const Run& run, Plan& plan) {
  const bool to_host =
      run.ends == Ends::to_host ||
      (run.ends == Ends::any && is_memory_of(*plan.copier, state.driver, run.from, run.bytes));
  plan.to_host.push_back(to_host);
  const auto [host, device] = to_host ? std::pair(run.to, run.from) : std::pair(run.from, run.to);
  if (!is_pageable(state.driver, host, run.bytes)) return Reason::other_memory;
  const SizeChoice choice = choose(state.figures.of_size(to_host, run.bytes), run.bytes);
  if (choice == SizeChoice::leave) return Reason::slower;
  if (!is_memory_of(*plan.copier, state.driver, device, run.bytes)) return Reason::other_memory;
  return choice == SizeChoice::compare ? std::optional(Reason::first) : std::nullopt;
}

/// Why the call is passed on. Nullopt: `plan` says how it is taken.
std::optional<Reason> reason_against(State& state, const CopyCall& call, Plan& plan) {
  plan.copier = current_copier(state);
  if (plan.copier == nullptr) return Reason::context;
  const std::optional<Reason> reason =
      reason_of_all(call, [&](const Run& run) { return reason_by_memory(state, run, plan); });
  if (reason && reason != Reason::first) return reason;
  if (is_capturing(state.driver, call.stream)) return Reason::capture;
  if (!is_of_context(state.driver, call.stream, plan.copier->context())) return Reason::context;
  if (reason) return reason;
  return plan.copier->opens() ? std::nullopt : std::optional(Reason::refused);
}

using Clock = std::chrono::steady_clock;

/// While one lives, copies of the calling thread are not taken: they come from within a copy.
struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

struct Attempt {
  std::optional<Reason> against;   ///< nullopt: the copies are made
  std::vector<bool> to_host = {};  ///< for each run, if `against` is nullopt or `first`
  bool idle = false;               ///< no other work was on the stream
};

/// Notes the runs of a call that began at `begin`, and their shares of its time if its stream was idle.
void note(State& state, const CopyCall& call, const Attempt& attempt, Timing SizeFigures::* whose,
          Clock::time_point begin) {
  const std::chrono::duration<double, std::nano> passed = Clock::now() - begin;
  double bytes = 0;
  for (const Run& run : call.runs) bytes += static_cast<double>(run.bytes);
  for (std::size_t i = 0; i < call.runs.size(); ++i) {
    const std::size_t of_this = call.runs[i].bytes;
    const double time = attempt.idle ? passed.count() * static_cast<double>(of_this) / bytes : 0;
    add(state.figures.of_size(attempt.to_host[i], of_this).*whose, of_this, static_cast<std::uint64_t>(time));
  }
}

/// Makes the copies if they are to be taken.
Attempt attempt_copy(State& state, const CopyCall& call) {
  if (const auto reason = reason_by_size(call)) return {reason};
  if (ended || inside || is_own_thread() || state.generation != fork_generation()) return {Reason::ending};
  if (!state.driver.complete) return {Reason::refused};
  const Inside guard;
  const RelaxedCapture relaxed(state.driver);
  Plan plan;
  Attempt attempt{.against = reason_against(state, call, plan)};
  if (attempt.against && attempt.against != Reason::first) return attempt;
  attempt.to_host = std::move(plan.to_host);
  attempt.idle = state.driver.stream_query(call.stream) == kSuccess;
  if (attempt.against) return attempt;
  // Whether all work that the stream waits for is done, that of the default stream, too, cannot be asked.
  if (call.form == Form::in_stream_order &&
      std::ranges::find(attempt.to_host, false) != attempt.to_host.end()) {
    attempt.against = Reason::form;
    return attempt;
  }
  const auto begin = Clock::now();
  attempt.against = plan.copier->copy(call, attempt.to_host);
  if (!attempt.against) note(state, call, attempt, &SizeFigures::taken, begin);
  return attempt;
}

}  // namespace

Result copy(const CopyCall& call, const void* real, FunctionRef<Result()> by_driver) {
  if (real == nullptr) return by_driver();
  State& state = state_for(real);
  const Attempt attempt = attempt_copy(state, call);
  if (!attempt.against) return kSuccess;
  std::size_t bytes = 0;
  for (const Run& run : call.runs) bytes += run.bytes;
  state.figures.pass_on(*attempt.against, call.runs.size(), bytes);
  if (attempt.against != Reason::first) return by_driver();
  const Inside guard;
  const auto begin = Clock::now();
  const Result result = by_driver();
  note(state, call, attempt, &SizeFigures::driver, begin);
  return result;
}

void leave_device(Ordinal device) {
  State* const state = the_state;
  if (state == nullptr || state->generation != fork_generation()) return;
  std::shared_ptr<DeviceCopier> left;
  const std::lock_guard lock(state->mutex);
  if (const auto found = state->devices.find(device); found != state->devices.end()) {
    left = std::move(found->second);
    state->devices.erase(found);
  }
}

}  // namespace penstock::run
