#pragma once

#include "frameworks.hpp"
#include "move/filled_slot.hpp"
#include "move/groups.hpp"
#include "move/tree.hpp"
#include "storage.hpp"

#include <penstock/device/event.hpp>
#include <penstock/transfer/transfer.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::python {

class Engine;
struct RankOfGroup;
struct Shipment;

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
  StreamHandle stream_ = nullptr;  ///< the stream on which the results' memory was allocated
  std::size_t bytes_ = 0;
  std::size_t bytes_left_ = 0;
  std::size_t arrays_ = 0;
  std::size_t samples_ = 0;
  double pin_seconds_ = 0;
};

/// A nest on its way to one device, or to each of several. It may be dropped before it lands.
class Flights {
 public:
  /// `link_bytes`: those that the links of all carry. `to_all`: it lands as a list, with a nest on each
  /// device.
  Flights(std::vector<Flight> flights, std::size_t link_bytes, bool to_all) noexcept
      : flights_(std::move(flights)), link_bytes_(link_bytes), to_all_(to_all) {}
  Flights(Flights&&) noexcept = default;
  Flights& operator=(Flights&&) = delete;

  [[nodiscard]] const Flight& first() const noexcept { return flights_.front(); }
  [[nodiscard]] std::size_t link_bytes() const noexcept { return link_bytes_; }
  /// As those of Flight; `current` is of the first device.
  [[nodiscard]] nb::object land() { return with_others(flights_.front().land()); }
  [[nodiscard]] nb::object land_on(StreamHandle current) {
    return with_others(flights_.front().land_on(current));
  }
  void release_sources();
  /// True if somebody else than these flights has arrays of the slot.
  [[nodiscard]] bool sees(const FilledSlot& slot) const noexcept;

 private:
  [[nodiscard]] nb::object with_others(nb::object first);

  std::vector<Flight> flights_;
  std::size_t link_bytes_;
  bool to_all_;
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

}  // namespace penstock::python
