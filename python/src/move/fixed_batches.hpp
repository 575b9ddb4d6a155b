#pragma once

#include "frameworks.hpp"
#include "storage.hpp"

#include <penstock/transfer/transfer.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::python {

/// An array of a batch that is handed out again and again, with other bytes: the same object at the same
/// address.
class FixedArray {
 public:
  /// Nobody else has `array`, or another array of its memory. Calls `mark(array)` if it is PyTorch's.
  FixedArray(nb::object array, const nb::object& mark);

  [[nodiscard]] const nb::object& object() const noexcept { return array_; }
  /// True if somebody may still read its bytes: somebody has the array or a view of it, or autograd has saved
  /// it.
  [[nodiscard]] bool is_kept() const;
  /// True if it is not what it was: it has other memory, another shape or a gradient, or requires one.
  [[nodiscard]] bool was_changed() const;

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

[[nodiscard]] bool are_kept(const std::vector<FixedArray>& arrays);
[[nodiscard]] bool were_changed(const std::vector<FixedArray>& arrays);

/// Throws InvalidArgument: somebody keeps a batch whose memory the next one needs.
[[noreturn]] void refuse_kept();
/// Throws InvalidArgument: an array of a batch was changed.
[[noreturn]] void refuse_changed();

/// Device memory for one batch, and the arrays in it.
struct FixedSet {
  static constexpr std::uint64_t kNotHandedOut = std::numeric_limits<std::uint64_t>::max();

  std::shared_ptr<Storage> storage;
  std::vector<FixedArray> arrays;        ///< empty until a batch was sent into it
  std::vector<Transfer> transfers;       ///< those of the latest batch
  StreamHandle stream = nullptr;         ///< on which the latest batch was handed out
  std::uint64_t number = kNotHandedOut;  ///< of the latest batch, among those that were handed out
  std::shared_ptr<std::uint64_t> handed_out;

  /// Its batch is handed out.
  void hand_out(StreamHandle on);
};

/// Batches of the same arrays lie, in turn, in a few sets of memory. If the arrays' number, shapes or types
/// change, there are other sets for those. The interpreter's lock is held in all calls.
class FixedBatches {
 public:
  static constexpr std::size_t kMostLayouts = 8;

  /// `mark` is called with each tensor of PyTorch that is made.
  FixedBatches(std::size_t sets, nb::object mark) : sets_(sets), mark_(std::move(mark)) {}

  [[nodiscard]] std::size_t sets() const noexcept { return sets_; }
  /// False if there is no memory for a next batch that is like the latest, since somebody keeps earlier ones.
  /// Also false if somebody keeps one for longer than the number of sets allows. Throws InvalidArgument,
  /// once, if an array of the set whose turn it is was changed; that set then gets new arrays.
  [[nodiscard]] bool next_is_free();
  /// The next set in turn that nobody keeps. Throws InvalidArgument as next_is_free, if there is none, or for
  /// more than kMostLayouts different kinds of batches.
  [[nodiscard]] std::shared_ptr<FixedSet> next(const std::vector<Leaf>& leaves);
  [[nodiscard]] const nb::object& mark() const noexcept { return mark_; }

 private:
  struct Layout {
    std::vector<Leaf> arrays;  ///< without sources and addresses
    std::vector<std::shared_ptr<FixedSet>> sets;
    std::size_t turn = 0;

    [[nodiscard]] bool is_of(const std::vector<Leaf>& leaves) const;
  };
  /// The number of the next set in turn that nobody keeps, up to that of one that is to be made. None if
  /// there is none, or if somebody keeps a batch for too long.
  [[nodiscard]] std::optional<std::size_t> find_free(const Layout& layout) const;
  static void check(FixedSet& set);
  [[nodiscard]] Layout& layout_of(const std::vector<Leaf>& leaves);

  std::size_t sets_;
  nb::object mark_;
  std::vector<Layout> layouts_;  ///< the latest one first
  std::shared_ptr<std::uint64_t> handed_out_ = std::make_shared<std::uint64_t>(0);
};

void bind_fixed_batches(nb::module_& module);

}  // namespace penstock::python
