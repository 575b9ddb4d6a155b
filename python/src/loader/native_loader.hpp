#pragma once

#include "loader/keeping_loader.hpp"
#include "loader/lease_storage.hpp"
#include "move/destination.hpp"

#include <penstock/loader/loader.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// The arrays as fields. They keep the arrays alive, and their memory. Throws InvalidArgument that names the
/// field that does not fit.
[[nodiscard]] Dataset make_dataset(const std::vector<std::pair<std::string, nb::object>>& arrays);

/// Loader for Python: batches as lists of arrays; if several devices receive, a list of those, one for each.
class NativeLoader {
 public:
  using Arrays = std::vector<std::pair<std::string, nb::object>>;

  NativeLoader(EngineDestination destination, const Arrays& fields, LoaderOptions options);

  /// One array for each field, or None at the end of an epoch. On a GPU later work of PyTorch's current
  /// stream waits for them. On the host device the host blocks until they are there. While it waits, it runs
  /// signal handlers and throws their exceptions.
  [[nodiscard]] nb::object next();
  [[nodiscard]] KeepingLoader& loader() noexcept { return loader_; }

 private:
  [[nodiscard]] nb::list make_all(const KeepingLoader::Leases& leases) const;

  EngineDestination destination_;
  KeepingLoader loader_;  ///< the last: ends before the rest goes
};

void bind_loader(nb::module_& module);

}  // namespace penstock::python
