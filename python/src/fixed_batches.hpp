#pragma once

#include "frameworks.hpp"
#include "storage.hpp"

#include <penstock/transfer/transfer.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace penstock::python {

/// An array of a batch that is handed out again and again, with other bytes: the same object at the same
/// address.
class FixedArray {
 public:
  /// Nobody else has `array`, or another array of its memory. Calls `mark(array)` if it is PyTorch's.
  FixedArray(nb::object array, const nb::object& mark);

  [[nodiscard]] const nb::object& object() const noexcept { return array_; }
  /// True if somebody may still read its bytes: he has the array or a view of it, or autograd has saved it.
  [[nodiscard]] bool is_kept() const;
  /// Throws InvalidArgument if it is not what it was: somebody has given it other memory or another shape, or
  /// has made it require gradients.
  void check() const;

 private:
  struct Uses {
    Py_ssize_t object = 0;
    long tensor = 0;
    Py_ssize_t memory_object = 0;
    long memory = 0;
  };
  [[nodiscard]] Uses uses() const;

  nb::object array_;
  nb::object memory_;  ///< PyTorch's storage; null for other arrays
  Leaf as_made_;       ///< without a source
  Uses own_;
};

/// Throws InvalidArgument: somebody keeps a batch whose memory the next one needs.
[[noreturn]] void refuse_kept();

/// Device memory for one batch, and the arrays in it.
struct FixedSet {
  std::shared_ptr<Storage> storage;
  std::vector<FixedArray> arrays;   ///< empty until a batch was sent into it
  std::vector<Transfer> transfers;  ///< those of the latest batch

  [[nodiscard]] bool is_kept() const;
};

/// Batches of the same arrays lie, in turn, in a few sets of memory. If the arrays' number, shapes or types
/// change, there are other sets for those. The interpreter's lock is held in all calls.
class FixedBatches {
 public:
  static constexpr std::size_t kMostLayouts = 8;

  /// `mark` is called with each tensor of PyTorch that is made.
  FixedBatches(std::size_t sets, nb::object mark) : sets_(sets), mark_(std::move(mark)) {}

  [[nodiscard]] std::size_t sets() const noexcept { return sets_; }
  /// False if somebody keeps the batch whose memory a next one, which is like the latest, would get.
  [[nodiscard]] bool next_is_free() const;
  /// The set whose turn it is. Throws InvalidArgument if somebody keeps its batch, if one of its arrays was
  /// changed, or for more than kMostLayouts different kinds of batches.
  [[nodiscard]] std::shared_ptr<FixedSet> next(const std::vector<Leaf>& leaves);
  [[nodiscard]] const nb::object& mark() const noexcept { return mark_; }

 private:
  struct Layout {
    std::vector<Leaf> arrays;  ///< without sources and addresses
    std::vector<std::shared_ptr<FixedSet>> sets;
    std::size_t turn = 0;

    [[nodiscard]] bool is_of(const std::vector<Leaf>& leaves) const;
  };
  [[nodiscard]] Layout& layout_of(const std::vector<Leaf>& leaves);

  std::size_t sets_;
  nb::object mark_;
  std::vector<Layout> layouts_;  ///< the latest one first
};

void bind_fixed_batches(nb::module_& module);

}  // namespace penstock::python
