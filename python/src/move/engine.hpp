#pragma once

#include "closable.hpp"
#include "frameworks.hpp"
#include "move/flight.hpp"
#include "storage.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// An array of a device, and where its bytes go.
struct Fetch {
  const Leaf* leaf = nullptr;
  std::byte* to = nullptr;
  std::optional<MemoryKind> kind;  ///< of the memory at `to`; none: the driver is asked
};

/// Everything for sending to one device: the transfer engine, a pool for results outside a framework's
/// memory, and the transfers in flight.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// The last owner closes it. It and the caller hold the interpreter's lock.
  [[nodiscard]] static std::shared_ptr<Engine> open(
      const std::string& spec, const std::optional<std::filesystem::path>& cache_directory);

  /// `pin`: PyTorch first copies its large pageable tensors into pinned memory, on the calling thread and
  /// PyTorch's own threads. If these threads make the batches, ours would take their cores. `timed`: see
  /// CopyOptions. `slot`: arrays of `tree` lie in it. If it is locked, they travel as one, and it stays taken
  /// until they have. Arrays for the host device stay in it. Null: none do.
  [[nodiscard]] Flight send(nb::handle tree, nb::handle expand, bool pin, bool timed = false,
                            const FilledSlot* slot = nullptr);
  /// True if `data` is memory of this device. For host devices, whose memory is also the host's.
  [[nodiscard]] bool owns(const void* data) const;
  /// True if `data` is device memory of a result of ours.
  [[nodiscard]] bool made(const std::byte* data) const {
    return is_cuda() ? FrameworkStorage::any_holds(data) : owns(data);
  }
  /// An array as `leaf` describes it over memory of this device: a DeviceStorage if it is a GPU and the array
  /// is not `for_torch`.
  [[nodiscard]] nb::object make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                                bool for_torch) const;
  /// Copies arrays of this device to the host. Blocks until the bytes are there. If it throws, nothing is on
  /// its way any more either.
  void fetch(const std::vector<Fetch>& fetches);

  /// Ordinary memory of the host: see HostStorage.
  [[nodiscard]] std::shared_ptr<Storage> allocate_on_host(std::size_t bytes,
                                                          std::size_t alignment = 64) const;
  /// Locked memory of the host for this device, from a pool of its own. Blocks the host. Throws OutOfMemory.
  [[nodiscard]] std::shared_ptr<Storage> allocate_pinned(std::size_t bytes);
  /// Of the process, once that pool has got back what was returned.
  [[nodiscard]] PinnedMemory pinned_memory();

  /// Releases the memory of finished transfers. Does not block.
  void reap();
  void keep(PendingTransfers pending);
  /// Waits for the transfers in flight, and for the calls of other threads that make some, and closes the
  /// device. Results stay valid. Later calls throw Closed. The caller holds the interpreter's lock.
  void close();

  /// Throws DeviceError in a process that was forked from the one that opened this engine.
  void refuse_fork() const;

  [[nodiscard]] const DeviceInfo& info() const noexcept { return device_.info(); }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  /// Throws Closed after close(), and DeviceError in a forked process.
  void refuse_closed() const;
  /// See Closable::get. Throws as refuse_closed does.
  [[nodiscard]] std::shared_ptr<TransferEngine> engine() const;
  /// Of the device's link.
  [[nodiscard]] const LinkProfile& profile() const noexcept { return profile_; }
  [[nodiscard]] bool is_cuda() const noexcept { return cuda_; }
  [[nodiscard]] int index() const noexcept { return device_.info().index; }
  [[nodiscard]] std::size_t in_flight();

 private:
  /// After it has got back what was returned, once no copy reads that any more. Without the interpreter's
  /// lock.
  [[nodiscard]] Pool& pinned_pool();

  friend class WeightLoad;
  friend class Group;
  friend struct RankOfGroup;
  Engine(const std::string& spec, const std::optional<std::filesystem::path>& cache_directory);
  [[nodiscard]] Closed closed_error() const;
  [[nodiscard]] std::shared_ptr<Storage> allocate(std::size_t bytes, bool for_torch);
  [[nodiscard]] std::vector<nb::object> make_all(const std::vector<Leaf>& leaves,
                                                 const std::shared_ptr<Storage>& storage,
                                                 const std::vector<std::byte*>& places) const;
  // The steps of send.
  [[nodiscard]] Shipment load(nb::handle tree, nb::handle expand, bool pin, const FilledSlot* slot);
  void fill_in(Shipment& shipment, bool pin, const FilledSlot* slot);
  /// PyTorch's current stream when the nest was taken apart. None if the results are not PyTorch's. The
  /// caller holds the interpreter's lock.
  [[nodiscard]] std::optional<Stream> stream_of(const Flight& flight) const;
  void enqueue(Shipment& shipment, const CopyOptions& common);
  /// Those that do not lie in a locked slot.
  void enqueue_others(Flight& flight, const Groups& groups, const std::vector<Leaf>& leaves,
                      const std::vector<std::byte*>& destinations, const CopyOptions& common) const;
  [[nodiscard]] Flight finish(Shipment shipment);
  Device device_;
  bool cuda_;
  std::uint64_t generation_;
  Closable<TransferEngine> engine_;
  const LinkProfile profile_;
  std::optional<Pool> pool_;
  std::once_flag pinned_made_;
  std::optional<Pool> pinned_;
  const std::shared_ptr<ReturnedMemory> returned_ = std::make_shared<ReturnedMemory>();
  std::shared_ptr<const Stream> release_stream_;
  std::mutex mutex_;
  std::vector<PendingTransfers> pending_;
};

void bind_engine(nb::module_& module);

}  // namespace penstock::python
