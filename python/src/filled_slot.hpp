#pragma once

#include "storage.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace penstock::python {

/// A slot whose arrays came from a worker process. Python makes the arrays, and drops this when they are
/// sent.
struct FilledSlot {
  std::shared_ptr<SlotStorage> storage;
  bool locked = false;  ///< the device reads it where it lies
};

void bind_shared_slots(nanobind::module_& module);

}  // namespace penstock::python
