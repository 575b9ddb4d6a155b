#pragma once

#include "loader/account.hpp"
#include "loader/device_ring.hpp"
#include "loader/route.hpp"

#include <penstock/core/worker_team.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace penstock {

/// Fills slots: gathers on the host what has to be, and enqueues the copies and kernels. One thread at a
/// time.
class Producer {
 public:
  /// Takes the pinned memory, streams and events that it needs, and landing memory of `device_memory`. Throws
  /// OutOfMemory.
  Producer(const Dataset& dataset, const Device& device, Pool& device_memory,
           const std::vector<Route>& routes, const Layout& layout, const LoaderOptions& options,
           std::size_t batch, WorkerTeam* team, bool streaming_stores);
  /// Waits for copies that are under way.
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// Enqueues the batch `run` into `slot`, whose `ready` marks its end; `timed` may be null. Blocks the host
  /// while it gathers, and while all stages are still read by earlier copies. Throws what reading throws;
  /// `slot.ready` then marks what was enqueued, or that is over; where neither can be had, `spoiled` is set.
  void fill(DeviceSlot& slot, const DeviceRing& ring, const SampleRun& run, Arrival& arrival,
            const Account& account, bool& spoiled);

  /// Blocks the host until nothing that was enqueued reads the dataset or writes a slot.
  void synchronize() const;

 private:
  struct Stage {
    std::byte* memory = nullptr;
    std::byte* on_device = nullptr;  ///< the same, as a kernel reaches it
    std::uint64_t* indices = nullptr;
    Event read;  ///< recorded behind the last work that reads this stage
  };
  /// One of the streams that batches travel on, and where they land on it: a batch has left that memory when
  /// the stream comes to the next one's copies.
  struct Lane {
    Stream stream;
    Buffer landing;
  };
  /// What travels of one field, where the host has to know.
  struct Part {
    std::size_t route = 0;
    std::vector<std::uint64_t> listed;  ///< room for the rows that are not
    std::span<const std::uint64_t> indices;
    std::size_t piece_rows = 1;
    std::size_t pieces = 0;
  };

  void choose_rows(Part& part, const Stage& stage, std::span<const std::uint64_t> indices) const;
  void gather_on_host(const Stage& stage);
  void gather_piece(const Stage& stage, std::size_t piece) const;
  void enqueue(const DeviceSlot& slot, const Stage& stage, std::size_t count, const Lane& lane);
  void enqueue_order(const DeviceSlot& slot, const SampleRun& run, const Stream& stream) const;
  void enqueue_plain_copies(const DeviceSlot& slot, const Stage& stage, std::size_t count,
                            const Stream& stream) const;
  void enqueue_row_copies(const Part& part, std::byte* destination, const Stream& stream);
  void enqueue_gather(std::size_t route, const DeviceSlot& slot, const Stage& stage, std::size_t count,
                      const Lane& lane) const;
  [[nodiscard]] const Part* part_of(std::size_t route) const noexcept;
  [[nodiscard]] unsigned blocks_over_link(const Route& route) const noexcept;
  [[nodiscard]] std::size_t link_bytes(std::span<const std::uint64_t> indices) const;

  const Dataset dataset_;
  const Device device_;
  const std::vector<Route>& routes_;
  const Layout layout_;
  WorkerTeam* const team_;
  const StoreKind stores_;
  const unsigned gather_blocks_;
  bool gathers_on_host_ = false;
  bool orders_on_device_ = false;  ///< the host needs no indices, neither to gather nor to count bytes
  std::vector<Lane> lanes_;
  std::unique_ptr<Pool> pinned_;
  Buffer stage_memory_;
  std::vector<Stage> stages_;
  std::vector<Part> parts_;
  std::vector<CopyPiece> copies_;
  std::size_t turn_ = 0;
};

}  // namespace penstock
