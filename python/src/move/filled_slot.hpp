#pragma once

#include "storage.hpp"

#include <nanobind/nanobind.h>

#include <memory>

namespace penstock::python {

/// A slot that a worker process has filled. Python makes the arrays in it; they keep the storage.
struct FilledSlot {
  std::shared_ptr<SlotStorage> storage;
  bool locked = false;  ///< the device reads it where it lies
};

void bind_shared_slots(nanobind::module_& module);

}  // namespace penstock::python
