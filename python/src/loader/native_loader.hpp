#pragma once

#include "loader/keeping_loader.hpp"
#include "loader/lease_storage.hpp"
#include "move/destination.hpp"
#include "move/fixed_batches.hpp"

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

  /// `mark`: batches are the same arrays again and again, one set for each slot of the ring, and each of
  /// these arrays is given to `mark` when it is made. None: new arrays for each batch.
  /// Only for one device over its own link.
  NativeLoader(EngineDestination destination, const Arrays& fields, LoaderOptions options, nb::object mark);

  /// One array for each field, or None at the end of an epoch. On a GPU later work of PyTorch's current
  /// stream waits for them. On the host device the host blocks until they are there. While it waits, it runs
  /// signal handlers and throws their exceptions.
  [[nodiscard]] nb::object next();
  /// If arrays are used again, ends the leases of batches that nobody keeps. False if somebody keeps one for
  /// longer than prefetch_depth others. Throws InvalidArgument, once, if an array was changed: see
  /// FixedArray. There are new ones in its place then.
  [[nodiscard]] bool end_leases();
  [[nodiscard]] KeepingLoader& loader() noexcept { return loader_; }

 private:
  /// The arrays of batches that lie in a slot of the ring.
  struct FixedLease {
    const std::byte* data = nullptr;  ///< of the first field
    std::uint64_t samples = 0;
    std::uint64_t number = 0;  ///< of the latest batch, among those that were handed out
    std::shared_ptr<LeaseStorage> storage;
    std::vector<FixedArray> arrays;
  };

  [[nodiscard]] nb::object make(const std::shared_ptr<LeaseStorage>& storage,
                                const DeviceField& field) const {
    return make_field(destination_.engine(), storage, field);
  }
  [[nodiscard]] nb::list make_all(const KeepingLoader::Leases& leases) const;
  /// The same, in the arrays of the slot, if they were made before.
  [[nodiscard]] nb::list make_again(const std::shared_ptr<LeaseStorage>& storage);

  EngineDestination destination_;
  nb::object mark_;
  std::vector<FixedLease> fixed_;
  std::uint64_t handed_out_ = 0;
  KeepingLoader loader_;  ///< the last: ends before the rest goes
};

void bind_loader(nb::module_& module);

}  // namespace penstock::python
