#pragma once

#include "device/cuda/driver.hpp"

#include <penstock/core/fork.hpp>

namespace penstock::cuda {

/// A device's primary context. PyTorch, CuPy and JAX use it in the same process too, so pointers and streams
/// can be shared with them. Retained for the object's life.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, Ordinal device);
  /// Waits for the work in the context, then releases it. Does nothing in a forked child.
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  [[nodiscard]] const Driver& driver() const noexcept { return driver_; }
  [[nodiscard]] Context get() const noexcept { return context_; }
  [[nodiscard]] bool forked() const noexcept { return fork_generation() != driver_.fork_generation; }

 private:
  const Driver& driver_;
  Ordinal device_;
  Context context_ = nullptr;
};

/// Makes a context current for a scope, and then restores the caller's.
class CurrentContext {
 public:
  explicit CurrentContext(const PrimaryContext& context) noexcept : driver_(context.driver()) {
    Context current = nullptr;
    result_ = driver_.ctx_get_current(&current);
    if (result_ != kSuccess || current == context.get()) return;
    result_ = driver_.ctx_push_current(context.get());
    pushed_ = result_ == kSuccess;
  }
  ~CurrentContext() {
    Context popped = nullptr;
    if (pushed_) driver_.ctx_pop_current(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  [[nodiscard]] Result result() const noexcept { return result_; }

 private:
  const Driver& driver_;
  Result result_ = kSuccess;
  bool pushed_ = false;
};

/// Calls `entry` with the context current. Throws DeviceError for a failure, and in a forked child.
template <typename Entry, typename... Arguments>
void call(const PrimaryContext& context, const Entry& entry, Arguments... arguments) {
  if (context.forked()) [[unlikely]]
    throw_forked(entry.name);
  const CurrentContext current(context);
  context.driver().check(current.result(), "cuCtxPushCurrent");
  context.driver().check(entry(arguments...), entry.name);
}

/// The same for callers that handle the failure: returns the result.
template <typename Entry, typename... Arguments>
[[nodiscard]] Result try_call(const PrimaryContext& context, const Entry& entry, Arguments... arguments) {
  if (context.forked()) [[unlikely]]
    throw_forked(entry.name);
  const CurrentContext current(context);
  return current.result() != kSuccess ? current.result() : entry(arguments...);
}

/// The same for releasing. Ignores failures, since the driver ends before us at the end of the process. Calls
/// nothing in a forked child.
template <typename Entry, typename... Arguments>
void release(const PrimaryContext& context, const Entry& entry, Arguments... arguments) noexcept {
  if (context.forked()) return;
  const CurrentContext current(context);
  if (current.result() == kSuccess) entry(arguments...);
}

}  // namespace penstock::cuda
