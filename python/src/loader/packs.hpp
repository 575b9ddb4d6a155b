#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void bind_packs(nanobind::module_& module);

}  // namespace penstock::python
