#pragma once

#include "frameworks.hpp"
#include "move/engine.hpp"

#include <penstock/device/device.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::python {

/// Which engine an array's device has.
struct ArrayEngines {
  std::vector<std::shared_ptr<Engine>> of_host_devices;
  nb::object of_gpu;  ///< called with its number

  /// Null for arrays of the host.
  [[nodiscard]] std::shared_ptr<Engine> find(const Leaf& leaf) const;
};

/// Memory of the host that gets the bytes of an array.
struct HostTarget {
  nb::object array;
  std::byte* data = nullptr;
  std::optional<MemoryKind> kind;  ///< none: the driver is asked
};

/// Copies each leaf to its target, given the engine of its device. The caller holds the interpreter's lock,
/// which is released meanwhile. Blocks until the bytes are there. If it throws, nothing is on its way any
/// more.
void copy_to_host(const std::vector<Leaf>& leaves, const std::vector<std::shared_ptr<Engine>>& engines,
                  const std::vector<HostTarget>& targets);

/// The functions behind penstock.to_host.
void bind_fetch(nb::module_& module);

}  // namespace penstock::python
