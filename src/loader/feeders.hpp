#pragma once

#include "loader/copy_pacer.hpp"
#include "loader/device_ring.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/memory/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

/// Pinned memory for one batch: the samples that the host gathers, and the indices and positions for kernels.
/// Null if a plan needs none of these.
struct StagingSlot {
  std::byte* memory = nullptr;
  std::byte* on_device = nullptr;  ///< its address for kernels
  std::size_t number = 0;
};

/// A copy stream, with the staging buffer on the device that its batches pass through, one after the other.
struct CopyStream {
  Stream stream;
  Buffer staging;
};

/// Samples that one host thread computes the indices of at a time. That takes some ns a sample, and handing
/// it to another thread some µs.
inline constexpr std::size_t kSamplesAtATime = 1024;

/// One batch on its way into its slot.
struct BatchToFeed {
  const DeviceSlot& slot;
  const StagingSlot& staging;
  const CopyStream& copy;
  CopyPacer& pacer;                        ///< of the batch's copies
  std::size_t count = 0;                   ///< samples
  std::span<const std::uint64_t> indices;  ///< empty if the device computes them
  const std::uint64_t* order = nullptr;    ///< the device's address of the indices, for kernels
  /// The device's address, for kernels, of what the staging slot has at FeedPlan::staging_indices.
  const std::byte* lists = nullptr;
};

/// The device's addresses of one field's memory; null if the field does not have that memory.
struct FieldAddresses {
  const std::byte* resident = nullptr;  ///< of sample 0
  const std::byte* streamed = nullptr;  ///< of the first sample that is not resident, if the device reads it
  const float* scale = nullptr;
  const float* shift = nullptr;
};

/// Of each field, in the dataset's order; null if the device does not decode it.
using JpegDecoders = std::vector<std::shared_ptr<JpegDecoder>>;

/// The state that all feeders of a loader share.
struct FeedContext {
  Dataset dataset;
  Device device;
  FeedPlan plan;
  std::vector<FieldAddresses> addresses;  ///< one for each field
  JpegDecoders decoders;                  ///< one for each field, with a lane for each staging slot
  SplitRequest split;                     ///< see Resident::split
  HostWorkers& workers;
  unsigned threads = 1;                                    ///< that gather
  std::optional<std::size_t> memory_bytes = std::nullopt;  ///< see LoaderOptions
  StoreKind stores = StoreKind::cached;
  unsigned gather_blocks = 0;  ///< see LoaderOptions
  double link_rate = 0;        ///< bytes per second that the link carries to the device
};

/// Moves fields that travel alike into the slots. One thread at a time. Allocates only in its constructor.
class Feeder {
 public:
  Feeder() = default;
  virtual ~Feeder() = default;
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  /// True if it should know the batches that come next, as far as there are staging slots for them.
  [[nodiscard]] virtual bool looks_ahead() const noexcept { return false; }
  /// A batch of these samples, to which the staging slot belongs, comes after those that were begun before.
  /// Does not block.
  virtual void begin(const StagingSlot& /*staging*/, std::span<const std::uint64_t> /*indices*/) {}
  /// No batch that was begun and not prepared comes. Blocks the host until none is read.
  virtual void drop_begun() noexcept {}
  /// Does the host's part, before the batch's slot may be written. Returns the bytes that will cross the
  /// link. Blocks the host while it gathers. Throws what reading throws.
  [[nodiscard]] virtual std::size_t prepare(const BatchToFeed& batch) = 0;
  /// Enqueues the device's part on the batch's copy stream. Blocks the host as CopyPacer says. Throws
  /// DeviceError.
  virtual void enqueue(const BatchToFeed& batch) = 0;
};

/// One feeder for each way of travelling that the plan uses. They refer to `context`.
[[nodiscard]] std::vector<std::unique_ptr<Feeder>> make_feeders(const FeedContext& context);

}  // namespace penstock
