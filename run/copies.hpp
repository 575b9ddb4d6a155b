#pragma once

#include "run/driver.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstddef>
#include <cstdint>

namespace penstock::run {

/// What a call says about the ends of its copy; `any`: the addresses tell.
enum class Ends : std::uint8_t { to_device, to_host, any };

/// A copy that the program asks the driver for.
struct CopyCall {
  Address to = 0;
  Address from = 0;
  std::size_t bytes = 0;
  Stream stream = nullptr;
  Ends ends = Ends::any;
  bool blocking = false;  ///< it is done when the call returns
};

/// Makes the copy by an engine, or passes it on by calling `by_driver`, once at most. The program sees no
/// difference but the time. If an engine fails, the driver makes the copy, and its result is the call's: so
/// errors are those of the driver. `real`: the driver's entry. Thread-safe.
Result copy(const CopyCall& call, const void* real, FunctionRef<Result()> by_driver);

/// The device's primary context is about to be destroyed, and so is what the engine has in it.
void leave_device(Ordinal device);

}  // namespace penstock::run
