#pragma once

#include <penstock/core/error.hpp>

#include <string>

namespace penstock::testing {

/// True if the call is refused because the process was forked.
template <typename Call>
bool says_forked(Call&& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.name() == "PENSTOCK_FORKED";
  }
  return false;
}

}  // namespace penstock::testing
