#pragma once

#include <penstock/data/sampler.hpp>

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

/// A sampler's state as Python keeps it: a dict of plain numbers, with the names of its members.
[[nodiscard]] nb::dict to_dict(const SamplerState& state);
/// The other way. The dict has all members: Python has checked it.
[[nodiscard]] SamplerState sampler_state(const nb::dict& dict);

void bind_sampler(nb::module_& module);

}  // namespace penstock::python
