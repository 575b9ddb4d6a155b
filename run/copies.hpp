#pragma once

#include "run/driver.hpp"
#include "run/runs.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstdint>
#include <span>

namespace penstock::run {

/// How a call wants its runs copied.
enum class Form : std::uint8_t {
  plain,            ///< the sources may be read at once
  in_stream_order,  ///< the sources are read when the stream comes to the copy
  other,            ///< they are no runs: the driver makes the copy
};

/// Copies that the program asks the driver for in one call.
struct CopyCall {
  std::span<const Run> runs;  ///< one at least; they may be copied in any order
  Stream stream = nullptr;
  bool blocking = false;  ///< they are done when the call returns
  Form form = Form::plain;
};

/// Makes all copies of the call by an engine, or passes the call on by calling `by_driver`, once at most. The
/// program sees no difference but the time. If an engine fails, the driver makes the copies, and its result
/// is the call's: so errors are those of the driver. `real`: the driver's entry. Thread-safe.
Result copy(const CopyCall& call, const void* real, FunctionRef<Result()> by_driver);

/// The device's primary context is about to be destroyed, and so is what the engine has in it.
void leave_device(Ordinal device);

}  // namespace penstock::run
