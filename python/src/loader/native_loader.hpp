#pragma once

#include "interpreter_lock.hpp"
#include "loader/lease_storage.hpp"
#include "move/destination.hpp"

#include <penstock/loader/loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// The arrays as fields. They keep the arrays alive, and their memory. Throws InvalidArgument that names the
/// field that does not fit.
[[nodiscard]] Dataset make_dataset(const std::vector<std::pair<std::string, nb::object>>& arrays);

/// Loader for Python: batches as lists of arrays; if several devices receive, a list of those, one for each.
/// If a signal's handler, such as Ctrl-C, raises before the arrays of a batch are made, that batch comes with
/// the next call. Used under the interpreter's lock.
class NativeLoader {
 public:
  using Arrays = std::vector<std::pair<std::string, nb::object>>;

  /// `rows_each`: rows of a sample, which have an axis of their own behind that of the samples; 0: none.
  NativeLoader(EngineDestination destination, Dataset dataset, LoaderOptions options,
               std::size_t rows_each = 0);
  ~NativeLoader();
  NativeLoader(const NativeLoader&) = delete;
  NativeLoader& operator=(const NativeLoader&) = delete;

  /// One array for each field, or None at the end of an epoch. On a GPU later work of PyTorch's current
  /// stream waits for them. On the host device the host blocks until they are there. While it waits, it runs
  /// signal handlers. Throws their exceptions, and those of a sampler.
  [[nodiscard]] nb::object next();
  /// The place after the batches that next() has given: before the latest one if it is not `handed_out`, and
  /// for a signal's handler that next() runs.
  [[nodiscard]] SamplerState state(bool handed_out) const;
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state) {
    drop_and([&] { loader_->restore(state); });
  }
  void leave_epoch() {
    drop_and([&] { loader_->leave_epoch(); });
  }
  void close() {
    drop_and([&] { loader_->close(); });
  }
  /// For all that a kept batch has no part in.
  [[nodiscard]] Loader* operator->() noexcept { return &*loader_; }

 private:
  /// The memory of a batch, on each device that receives; none: the end of an epoch.
  using Leases = std::vector<std::shared_ptr<LeaseStorage>>;

  /// Called without the interpreter's lock. `own`: see LeaseStorage.
  [[nodiscard]] Leases take(const std::vector<Stream>& streams,
                            const std::vector<std::shared_ptr<const Stream>>& own);
  [[nodiscard]] nb::object make(const Leases& leases) const;
  /// Drops the batch that is kept, and then calls `change` without the interpreter's lock.
  template <typename Change>
  void drop_and(Change&& change) {
    Leases dropped = std::exchange(kept_, {});
    const Unlocked unlocked;
    dropped.clear();
    change();
  }

  EngineDestination destination_;
  const std::size_t rows_each_;
  std::vector<std::shared_ptr<const Stream>> streams_;  ///< of the devices that receive
  Leases kept_;
  bool is_under_way_ = false;  ///< next()
  SamplerState before_;        ///< before the latest batch
  std::optional<Loader> loader_;
};

void bind_loader(nb::module_& module);
void bind_replay(nb::module_& module);

}  // namespace penstock::python
