#pragma once

#include "closable.hpp"
#include "frameworks.hpp"
#include "move/filled_slot.hpp"
#include "move/fixed_batches.hpp"
#include "move/tree.hpp"
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
#include <span>
#include <string>
#include <vector>

namespace penstock::python {

/// Transfers in flight, with the memory that they still need.
struct PendingTransfers {
  std::vector<Transfer> transfers;
  std::shared_ptr<Storage> storage;  ///< null if the results' owners keep it
  std::vector<nb::object> sources;
  std::shared_ptr<SlotStorage> slot;    ///< a locked slot that the device reads
  std::optional<Event> read_by_others;  ///< objects moved themselves out of the slot: done when this is

  [[nodiscard]] bool empty() const noexcept { return transfers.empty() && !read_by_others; }
  /// True if the memory is not needed any more. Does not block.
  [[nodiscard]] bool is_done() const;
  /// Blocks until then.
  void wait() const;
};

/// True if the array lies in a slot that the device reads. `slot` may be null.
[[nodiscard]] bool is_in(const FilledSlot* slot, const Leaf& leaf);

/// An array of a device, and where its bytes go.
struct Fetch {
  const Leaf* leaf = nullptr;
  std::byte* to = nullptr;
  std::optional<MemoryKind> kind;  ///< of the memory at `to`; none: the driver is asked
};

class Engine;
struct RankOfGroup;
struct Shipment;

/// How the arrays of one nest travel.
struct Groups {
  std::vector<std::size_t> together;  ///< out of a locked slot
  std::span<const std::byte> slot;    ///< what holds these
  std::vector<std::size_t> packed;
  std::vector<std::size_t> alone;
};

/// A nest on its way to the device. It may be dropped before land().
class Flight {
 public:
  explicit Flight(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  ~Flight();
  Flight(Flight&& other) noexcept = default;
  Flight& operator=(Flight&&) = delete;

  /// The nest with its arrays on the device. On a GPU the consumer's current stream (PyTorch) or the stream
  /// that takes them (DLPack) waits for them. The host blocks only while pageable memory is being staged. On
  /// the host device the host blocks until they are there. Callable once.
  [[nodiscard]] nb::object land();
  /// The same, given PyTorch's current stream; ignored unless PyTorch is imported and the device is a GPU.
  [[nodiscard]] nb::object land_on(StreamHandle current);
  /// Blocks until the sources are no longer read.
  void release_sources();

  /// The transfers; empty after land().
  [[nodiscard]] const std::vector<Transfer>& transfers() const noexcept { return pending_.transfers; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t arrays() const noexcept { return arrays_; }
  /// Bytes of the arrays that stay where a worker process put them: memory of the host device.
  [[nodiscard]] std::size_t bytes_left() const noexcept { return bytes_left_; }
  /// The extent of the first array's first axis; 0 if there is none.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }
  /// In which PyTorch copied tensors to pinned memory, before they were sent.
  [[nodiscard]] double pin_seconds() const noexcept { return pin_seconds_; }
  /// True if somebody else than this flight has arrays of the slot.
  [[nodiscard]] bool sees(const FilledSlot& slot) const noexcept;
  /// True if the slot stays taken until this flight has what it needs of it.
  [[nodiscard]] bool keeps(const FilledSlot& slot) const noexcept { return pending_.slot == slot.storage; }

 private:
  friend class Engine;
  friend class Group;
  friend struct RankOfGroup;
  friend struct Shipment;
  std::shared_ptr<Engine> engine_;
  nb::object result_;
  PendingTransfers pending_;
  std::shared_ptr<FixedSet> set_;
  StreamHandle stream_ = nullptr;  ///< the stream on which the results' memory was allocated
  std::size_t bytes_ = 0;
  std::size_t bytes_left_ = 0;
  std::size_t arrays_ = 0;
  std::size_t samples_ = 0;
  double pin_seconds_ = 0;
};

/// A nest taken apart, with memory on the device that nothing has been sent to yet. If the nest has no
/// leaves, there is no memory.
struct Shipment {
  Flight flight;
  Tree nest;
  Groups groups = {};
  std::vector<std::size_t> offsets = {};  ///< of each leaf in the memory

  /// Where each leaf goes.
  [[nodiscard]] std::vector<std::byte*> destinations() const;
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
  /// until they have. Arrays for the host device stay in it. Null: none do. `fixed`: where the results lie,
  /// in turn. All arrays are copied there, and `expand` refuses what moves itself. Null: in new memory.
  [[nodiscard]] Flight send(nb::handle tree, nb::handle expand, bool pin, bool timed = false,
                            const FilledSlot* slot = nullptr, FixedBatches* fixed = nullptr);
  /// True if `data` is memory of this device. For host devices, whose memory is also the host's.
  [[nodiscard]] bool owns(const void* data) const;
  /// Copies arrays of this device to the host. Blocks until the bytes are there. If it throws, nothing is on
  /// its way any more either.
  void fetch(const std::vector<Fetch>& fetches);

  /// Locked memory of the host for this device, from a pool of its own. Blocks the host. Throws OutOfMemory.
  [[nodiscard]] std::shared_ptr<Storage> allocate_pinned(std::size_t bytes);

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
  friend class WeightLoad;
  friend class Group;
  friend struct RankOfGroup;
  Engine(const std::string& spec, const std::optional<std::filesystem::path>& cache_directory);
  [[nodiscard]] Closed closed_error() const;
  [[nodiscard]] std::shared_ptr<Storage> allocate(std::size_t bytes, bool for_torch);
  /// Where the arrays of one nest lie in its memory.
  struct Layout {
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;

    void append(std::size_t leaf, std::size_t count);
  };
  /// `as_one`: what lies in a locked slot travels together.
  [[nodiscard]] Groups group(const std::vector<Leaf>& leaves, const FilledSlot* slot, bool as_one) const;
  [[nodiscard]] static Layout lay_out(const std::vector<Leaf>& leaves, const Groups& groups);
  [[nodiscard]] static Layout lay_out_in_order(const std::vector<Leaf>& leaves);
  /// True if what lies in the slot lies there as in the layout, with nothing in between.
  [[nodiscard]] static bool travels_as_one(const Groups& groups, const std::vector<Leaf>& leaves,
                                           const Layout& layout);
  [[nodiscard]] std::vector<nb::object> make_all(const std::vector<Leaf>& leaves,
                                                 const std::shared_ptr<Storage>& storage,
                                                 const std::vector<std::byte*>& places) const;
  // The steps of send.
  [[nodiscard]] Shipment load(nb::handle tree, nb::handle expand, bool pin, const FilledSlot* slot,
                              FixedBatches* fixed);
  void fill_in(Shipment& shipment, bool pin, const FilledSlot* slot, FixedBatches* fixed);
  /// PyTorch's current stream when the nest was taken apart. None if the results are not PyTorch's. The
  /// caller holds the interpreter's lock.
  [[nodiscard]] std::optional<Stream> stream_of(const Flight& flight) const;
  void enqueue(Shipment& shipment, const CopyOptions& common);
  /// Those that do not lie in a locked slot.
  void enqueue_others(Flight& flight, const Groups& groups, const std::vector<Leaf>& leaves,
                      const std::vector<std::byte*>& destinations, const CopyOptions& common) const;
  [[nodiscard]] Flight finish(Shipment shipment, FixedBatches* fixed);
  [[nodiscard]] nb::object make(const Leaf& leaf, const std::shared_ptr<Storage>& storage, std::byte* at,
                                bool for_torch) const;

  Device device_;
  bool cuda_;
  std::uint64_t generation_;
  Closable<TransferEngine> engine_;
  const LinkProfile profile_;
  std::optional<Pool> pool_;
  std::once_flag pinned_made_;
  std::optional<Pool> pinned_;
  std::shared_ptr<const Stream> release_stream_;
  std::mutex mutex_;
  std::vector<PendingTransfers> pending_;
};

void bind_engine(nb::module_& module);

}  // namespace penstock::python
