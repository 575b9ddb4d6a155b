#pragma once

#include "frameworks.hpp"
#include "storage.hpp"
#include "tree.hpp"

#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

/// What a transfer still needs though nobody asks for it any more.
struct Remains {
  std::vector<Transfer> transfers;
  std::shared_ptr<Storage> storage;  ///< null where the results' owners keep it safely
  std::vector<nb::object> sources;
};

class Engine;

/// A nest on its way to the device. Dropping it before it landed is allowed.
class Flight {
 public:
  explicit Flight(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  ~Flight();
  Flight(Flight&& other) noexcept = default;
  Flight& operator=(Flight&&) = delete;

  /// The nest with its arrays on the device. On a GPU the consumer's current stream waits for them (PyTorch),
  /// or the stream that takes them (DLPack); the host blocks only while pageable memory is still being
  /// staged. On the host device the host blocks until they are there. Callable once.
  [[nodiscard]] nb::object land();
  /// The same, given PyTorch's current stream; not looked at unless PyTorch is imported, on a GPU.
  [[nodiscard]] nb::object land_on(StreamHandle current);
  /// Blocks until the sources are not read any more.
  void release_sources();

  /// Until it has landed.
  [[nodiscard]] const std::vector<Transfer>& transfers() const noexcept { return remains_.transfers; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t arrays() const noexcept { return arrays_; }
  /// The extent of the first array's first axis; 0 where there is none.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }

 private:
  friend class Engine;
  std::shared_ptr<Engine> engine_;
  nb::object result_;
  Remains remains_;
  StreamHandle stream_ = nullptr;  ///< on which the results' memory was allocated
  std::size_t bytes_ = 0;
  std::size_t arrays_ = 0;
  std::size_t samples_ = 0;
};

/// Everything that one device needs to be sent to: the transfer engine, a pool for results that are no
/// framework's, and what is still in flight.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// The last owner closes it. It and the caller hold the interpreter's lock.
  [[nodiscard]] static std::shared_ptr<Engine> open(
      const std::string& spec, const std::optional<std::filesystem::path>& cache_directory);

  /// `pin`: PyTorch copies its large pageable tensors into pinned memory first, on the calling thread and
  /// those of its own that this one has. Where the same threads make the batches, ours would only take their
  /// cores. `timed`: see CopyOptions.
  [[nodiscard]] Flight send(nb::handle tree, nb::handle expand, bool pin, bool timed = false);
  /// Whether `data` is memory of this device, where the host device's memory is the host's too.
  [[nodiscard]] bool owns(const void* data) const;
  /// Copies `leaves` of this device to new host memory, which it returns; blocks until it is there.
  [[nodiscard]] std::vector<std::shared_ptr<Storage>> fetch(const std::vector<const Leaf*>& leaves);

  /// Lets go of what finished transfers needed. Does not block.
  void reap();
  void keep(Remains remains);
  /// Waits for what is in flight and closes the device; results stay valid. Later calls throw Closed.
  void close();

  /// Throws DeviceError in a process that was forked from the one that opened this.
  void refuse_fork() const;

  [[nodiscard]] const DeviceInfo& info() const noexcept { return device_.info(); }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const TransferEngine& transfers() const { return engine(); }
  [[nodiscard]] bool is_cuda() const noexcept { return cuda_; }
  [[nodiscard]] int index() const noexcept { return device_.info().index; }
  [[nodiscard]] std::size_t in_flight();

 private:
  Engine(const std::string& spec, const std::optional<std::filesystem::path>& cache_directory);
  [[nodiscard]] TransferEngine& engine() const;
  [[nodiscard]] std::shared_ptr<Storage> allocate(std::size_t bytes, bool for_torch);
  void enqueue(Flight& flight, const std::vector<Leaf>& leaves, const std::vector<std::size_t>& packed,
               const std::vector<std::size_t>& alone, const std::vector<std::byte*>& destinations,
               const CopyOptions& common);
  [[nodiscard]] nb::object make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                                bool for_torch) const;

  Device device_;
  bool cuda_;
  std::uint64_t generation_;
  std::unique_ptr<TransferEngine> engine_;
  std::optional<Pool> pool_;
  std::shared_ptr<const Stream> release_stream_;
  std::mutex mutex_;
  std::vector<Remains> remains_;
};

void bind_engine(nb::module_& module);

}  // namespace penstock::python
