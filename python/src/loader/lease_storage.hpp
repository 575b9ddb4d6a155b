#pragma once

#include "move/engine.hpp"
#include "storage.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/loader/device_batch.hpp>

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>

namespace penstock::python {

/// The lease of a batch. The tensors made of the batch share it, and the last one gives the slot back.
class LeaseStorage final : public DeviceStorage {
 public:
  /// `stream` is the one given to next() if it is ours; null if it is PyTorch's.
  LeaseStorage(Device device, std::shared_ptr<const Stream> stream, DeviceBatch batch);

  [[nodiscard]] const DeviceBatch& batch() const noexcept { return batch_; }
  void hand_to(StreamHandle stream) override;
  void wait_on(const Stream& stream) const override;
  void synchronize() const override;

 private:
  Device device_;
  std::shared_ptr<const Stream> stream_;
  std::mutex mutex_;
  DeviceBatch batch_;
};

/// Blocks until the work on a host device's stream is done, or a signal's handler raises. Called without the
/// interpreter's lock.
void wait_for_host(const Device& device, const Stream& stream);
/// The same for a batch on `stream`. On a GPU it does nothing: streams wait there.
void wait_if_on_host(const Engine& engine, const Stream& stream);
/// True if batches are tensors of PyTorch on a GPU. Under the interpreter's lock, as the next.
[[nodiscard]] bool is_for_torch(const Engine& engine);
/// The stream that a loader's next batch is for: PyTorch's current one if it is for PyTorch, otherwise `own`.
[[nodiscard]] Stream stream_of_next(const Engine& engine, const Stream& own);

/// An array for each field of the leased batch of `dataset`, on the engine's device. A batch of one pack is
/// the pack, without an axis of samples, and the list ends with the pack's epoch and number. `rows_each`: see
/// NativeLoader.
[[nodiscard]] nb::list make_fields(const Engine& engine, const std::shared_ptr<LeaseStorage>& storage,
                                   const Dataset& dataset, std::size_t rows_each = 0);

}  // namespace penstock::python
