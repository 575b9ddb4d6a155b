#pragma once

#include "frameworks.hpp"
#include "storage.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

namespace penstock::python {

/// An array on a GPU, for programs without PyTorch: CuPy, JAX and others take it by DLPack, Numba by
/// __cuda_array_interface__.
struct DeviceArray {
  std::shared_ptr<DeviceStorage> storage;
  Leaf leaf;  ///< without a source; `data` lies in `storage`
};

/// Fills `leaf` from a DeviceArray. False for anything else.
[[nodiscard]] bool read_array(Leaf& leaf, PyObject* object);

/// A DeviceArray as `leaf` describes it.
[[nodiscard]] nb::object make_array(std::shared_ptr<DeviceStorage> storage, Leaf leaf, const std::byte* at,
                                    dlpack::Device on);

void bind_arrays(nb::module_& module);

}  // namespace penstock::python
