#pragma once

#include "engine.hpp"
#include "fixed_batches.hpp"
#include "kept_batch.hpp"
#include "storage.hpp"
#include "tensor_watch.hpp"

#include <penstock/loader/loader.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// The lease of a batch. The tensors made of the batch share it, and the last one gives the slot back.
class LeaseStorage final : public DeviceStorage {
 public:
  /// `stream` is the one given to next() if it is ours; null if it is PyTorch's.
  LeaseStorage(Device device, std::shared_ptr<const Stream> stream, DeviceBatch batch);

  /// The batch. There is one only while the memory is leased.
  [[nodiscard]] const DeviceBatch& batch() const noexcept { return *batch_; }
  /// Ends the lease, while the tensors stay.
  void let_go();
  [[nodiscard]] bool is_leased() const;
  /// Leases the same memory again.
  void lease(DeviceBatch batch);
  void hand_to(StreamHandle stream) override;
  void wait_on(const Stream& stream) const override;
  void synchronize() const override;

 private:
  Device device_;
  std::shared_ptr<const Stream> stream_;
  mutable std::mutex mutex_;
  std::optional<DeviceBatch> batch_;
};

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

  nb::object batches_;       ///< a weak reference
  std::uint64_t draws_ = 0;  ///< of this epoch, without one that was interrupted
  /// The latest draw is the last, and those before it are lent. They are let go with the interpreter's lock.
  std::vector<std::shared_ptr<Draw>> drawn_;
  /// The indices of the latest draw that were not given yet.
  std::span<const std::uint64_t> left_;
  std::size_t each_ = 0;  ///< indices in each of these batches
};

/// The arrays as fields. They keep the arrays alive, and their memory. Throws InvalidArgument that names the
/// field that does not fit.
[[nodiscard]] Dataset make_dataset(const std::vector<std::pair<std::string, nb::object>>& arrays);

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

/// Throws the exception of a signal's handler, such as Ctrl-C. Called without the interpreter's lock.
void hear_signals();
/// Blocks until the work on a host device's stream is done, or a signal's handler raises. Called without the
/// interpreter's lock.
void wait_for_host(const Device& device, const Stream& stream);
/// The same for a batch on `stream`. On a GPU it does nothing: streams wait there.
void wait_if_on_host(const Engine& engine, const Stream& stream);
/// True if batches are tensors of PyTorch on a GPU. Under the interpreter's lock, as the next.
[[nodiscard]] bool is_for_torch(const Engine& engine);
/// The stream that a loader's next batch is for: PyTorch's current one if it is for PyTorch, otherwise `own`.
[[nodiscard]] Stream stream_of_next(const Engine& engine, const Stream& own);

/// An array of a field of the leased batch, on the engine's device.
[[nodiscard]] nb::object make_field(const Engine& engine, const std::shared_ptr<LeaseStorage>& storage,
                                    const DeviceField& field);

/// Loader for Python: batches as lists of arrays.
class NativeLoader {
 public:
  using Arrays = std::vector<std::pair<std::string, nb::object>>;
  /// Columns of equal type and shape, one after the other in a slot.
  struct ColumnRun {
    std::vector<std::size_t> fields;
    std::size_t samples = 0;  ///< that each has room for
  };

  /// `mark`: batches are the same arrays again and again, one set for each slot of the ring, and each of
  /// these arrays is given to `mark` when it is made. None: new arrays for each batch.
  NativeLoader(std::shared_ptr<Engine> engine, const Arrays& fields, LoaderOptions options, nb::object mark);
  ~NativeLoader();
  NativeLoader(const NativeLoader&) = delete;
  NativeLoader& operator=(const NativeLoader&) = delete;

  /// One array for each field, or None at the end of an epoch. On a GPU later work of PyTorch's current
  /// stream waits for them. On the host device the host blocks until they are there. While it waits, it runs
  /// signal handlers and throws their exceptions.
  [[nodiscard]] nb::object next();
  /// Appends the result of next() to `made`, unless a tensor of `watch` has changed: then returns false. An
  /// exception of a signal's handler, which comes once this has returned, does not lose what was made.
  [[nodiscard]] bool next_into(nb::list made, const TensorWatch& watch);
  /// If arrays are used again, ends the leases of batches that nobody keeps. False if somebody keeps one for
  /// longer than prefetch_depth others. Throws InvalidArgument, once, if an array was changed: see
  /// FixedArray. There are new ones in its place then.
  [[nodiscard]] bool end_leases();
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  /// Goes to `epoch`, and blocks until nothing reads the data any more before a batch is asked for.
  void end_epoch(std::uint64_t epoch);
  [[nodiscard]] Loader& loader() noexcept { return *loader_; }
  void close();

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
    return make_field(*engine_, storage, field);
  }
  /// Makes one tensor of all columns, and takes it apart: that costs a fraction of importing each. The parts
  /// are no views for autograd, so that changing one in place does not count as a change of the others.
  void take_apart(const std::shared_ptr<LeaseStorage>& storage, const ColumnRun& run,
                  std::vector<nb::object>& made) const;
  [[nodiscard]] nb::object make_again(DeviceBatch batch, const std::shared_ptr<const Stream>& stream);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Stream> stream_;
  std::optional<Loader> loader_;
  std::vector<ColumnRun> runs_;
  nb::object mark_;
  std::vector<FixedLease> fixed_;
  KeptBatch<DeviceBatch> kept_;
  std::uint64_t handed_out_ = 0;
};

void bind_loader(nb::module_& module);

}  // namespace penstock::python
