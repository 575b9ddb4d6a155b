#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

/// The memory of regions of penstock.memory_saver, which PyTorch's allocator takes by the functions
/// penstock_fixed_allocate and penstock_fixed_free.
void bind_pluggable_allocator(nanobind::module_& module);

}  // namespace penstock::python
