#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

/// The functions behind penstock.to_host.
void bind_fetch(nanobind::module_& module);

}  // namespace penstock::python
