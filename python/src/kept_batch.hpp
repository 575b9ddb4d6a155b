#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <utility>

namespace penstock::python {

namespace nb = nanobind;

/// The batch that a loader has given when a signal's handler, such as Ctrl-C, ends the wait for its bytes. It
/// comes with the next call. Used under the interpreter's lock.
template <typename Batch>
class KeptBatch {
 public:
  /// The batch that is kept, otherwise that of `take`, once `wait` has returned; nullopt if `take` gives
  /// none. Both are called without the interpreter's lock. If one throws an nb::python_error, the batch is
  /// kept.
  template <typename Take, typename Wait>
  [[nodiscard]] std::optional<Batch> next(Take&& take, Wait&& wait) {
    std::optional<Batch> batch = std::exchange(batch_, std::nullopt);
    try {
      const nb::gil_scoped_release unlocked;
      if (!batch) batch = take();
      if (batch) wait();
    } catch (const nb::python_error&) {
      batch_ = std::move(batch);
      throw;
    }
    return batch;
  }

  /// Drops it, and then calls `change` without the interpreter's lock: the loader goes to another place.
  template <typename Change>
  void drop_and(Change&& change) {
    std::optional<Batch> dropped = std::exchange(batch_, std::nullopt);
    const nb::gil_scoped_release unlocked;
    dropped.reset();
    change();
  }

 private:
  std::optional<Batch> batch_;
};

}  // namespace penstock::python
