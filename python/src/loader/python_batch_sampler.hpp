#pragma once

#include <penstock/data/batch_sampler.hpp>
#include <penstock/loader/loader_options.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

/// Asks the Batches of _samplers.py for the samples of each batch, or of several at once. Takes the
/// interpreter's lock then. Does not keep them: the Python loader does.
class PythonBatchSampler final : public BatchSampler {
 public:
  /// Thrown in a batch's place if the Python sampler failed there: Batches.fail raises what happened.
  struct Failed : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return "its sampler raised an exception"; }
  };

  explicit PythonBatchSampler(const nb::object& batches) : batches_(nb::weakref(batches)) {}
  ~PythonBatchSampler() override;

  void start_epoch(std::uint64_t epoch) override;
  bool next(std::vector<std::uint64_t>& indices) override;
  bool lend(Lent& lent) override;
  /// The attribute `reading_epoch` of Batches, unless that is None.
  [[nodiscard]] std::uint64_t reading_epoch(std::uint64_t epoch) const override {
    return reading_epoch_.value_or(epoch);
  }
  /// Raises the exception of the sampler that failed or was interrupted.
  void fail() const;

 private:
  [[nodiscard]] nb::object batches() const { return batches_(); }
  /// Calls a method of Batches. Throws Interrupted if it raises: an nb::python_error can be thrown only once.
  template <typename... Arguments>
  [[nodiscard]] nb::object ask(const char* method, Arguments... arguments) const;
  /// False at the end of the epoch.
  [[nodiscard]] bool draw();

  /// An array of indices that was drawn.
  struct Draw {
    nb::object array;
  };

  nb::object batches_;  ///< a weak reference
  std::optional<std::uint64_t> reading_epoch_;
  std::uint64_t draws_ = 0;  ///< of this epoch, without one that was interrupted
  /// The latest draw is the last, and those before it are lent. They are let go with the interpreter's lock.
  std::vector<std::shared_ptr<Draw>> drawn_;
  /// The indices of the latest draw that were not given yet.
  std::span<const std::uint64_t> left_;
  std::size_t each_ = 0;  ///< indices in each of these batches
};

/// Calls `make`, and raises what the Python sampler of `options` raised if its batch is due or it was
/// interrupted.
template <typename Make>
auto with_sampler_errors(const LoaderOptions& options, Make&& make) {
  const auto fail = [&] { static_cast<const PythonBatchSampler&>(*options.batch_sampler).fail(); };
  try {
    return make();
  } catch (const PythonBatchSampler::Failed&) {
    fail();
  } catch (const BatchSampler::Interrupted&) {
    fail();
  }
  return decltype(make())();
}

}  // namespace penstock::python
