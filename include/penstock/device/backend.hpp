#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/core/sample_run.hpp>
#include <penstock/device/memory_kind.hpp>
#include <penstock/device/topology.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

/// For implementers of a device, and for the layers above that enqueue work. Users of penstock want
/// device.hpp.
namespace penstock {

struct DeviceInfo {
  std::string spec;     ///< what Device::open takes to get this device again: "cuda:0", "host"
  std::string backend;  ///< "cuda" or "host"
  int index = 0;
  std::string name;    ///< "NVIDIA H200"
  std::string uuid;    ///< stable across reboots; empty for host
  std::string driver;  ///< "13.0" (the CUDA version the driver supports), or penstock's version for host
  std::string pci_bus_id;
  int compute_major = 0;
  int compute_minor = 0;
  unsigned multiprocessors = 0;
  std::size_t memory_bytes = 0;
  int numa_node = -1;  ///< -1: unknown or none
  /// The copy engines take many copies in one call, at some half a microsecond each (cuda from driver 12.8):
  /// where not, copy_each costs a call for each.
  bool batched_copies = false;
  LinkInfo link;
};

struct DeviceMemory {
  std::size_t total = 0;  ///< bytes
  std::size_t free = 0;   ///< bytes; other processes share it
};

enum class StreamPriority : std::uint8_t { normal, high };
enum class EventTiming : std::uint8_t { off, on };
/// How the host waits for an event: polling, which notices at once and keeps a processor busy, or asleep,
/// which leaves the processor to others and notices some tens of microseconds late.
enum class EventWait : std::uint8_t { poll, sleep };

/// Native handles: CUstream and CUevent on cuda. A null stream handle is the device's default stream.
using StreamHandle = void*;
using EventHandle = void*;

/// One piece of several that are copied together. Both ends are reachable by the device.
struct CopyPiece {
  const void* source = nullptr;
  void* destination = nullptr;
  std::uint64_t bytes = 0;
};

/// Rows picked by number out of an array and laid side by side, converted on the way:
///   destination[i][e] = convert(source[indices[i]][e]) * scale[c] + shift[c],  c = (e / channel_elements) %
///   channels
/// where row r of the source lies at `head + r * stride` for r below head_rows, and at
/// `source + (r - head_rows) * stride` from there on.
/// Conversions go through float32 where scale or shift are given, or where the types are floats of different
/// width; integers to integers are extended by value. Without scale, shift, and change of type the bytes are
/// copied as they are, whatever the type.
struct GatherRequest {
  /// Row `head_rows` and those after it; device memory, or the device's address of locked host memory. May be
  /// null where the head holds all rows.
  const void* source = nullptr;
  std::uint64_t source_rows = 0;  ///< of head and source together
  /// Rows 0 to head_rows-1 where they lie elsewhere than the others (on the device already, say); memory as
  /// of `source`. Not looked at where head_rows is 0.
  const void* head = nullptr;
  std::uint64_t head_rows = 0;  ///< at most source_rows
  std::uint64_t row_elements = 0;
  std::uint64_t row_stride_bytes = 0;      ///< between rows of head and source; 0: rows lie side by side
  const std::uint64_t* indices = nullptr;  ///< reachable by the device; null: rows 0 to count-1
  std::uint64_t count = 0;                 ///< rows to gather
  void* destination = nullptr;             ///< count x row_elements of `to`, side by side
  DType from = DType::uint8;
  DType to = DType::uint8;
  const float* scale = nullptr;  ///< `channels` factors, reachable by the device; null: 1
  const float* shift = nullptr;  ///< `channels` terms, reachable by the device; null: 0
  std::uint32_t channels = 1;
  std::uint64_t channel_elements = 1;  ///< consecutive elements of one channel
  /// Blocks of threads to use on a GPU: few leave room for the consumer's kernels, and about 8 fill a PCIe 5
  /// link. 0: as many as fill the device.
  std::uint32_t blocks = 0;
};

/// The samples of a run, written as a gather takes them.
struct OrderRequest {
  SampleRun run;
  std::uint64_t* indices = nullptr;  ///< device memory, or the device's address of locked host memory
};

/// Whether `gather` can turn `from` into `to`: equal types; integers to wider integers that hold all their
/// values; uint8, int8, int16, uint16, float16, bfloat16, float32 to float16, bfloat16 or float32.
[[nodiscard]] bool can_widen(DType from, DType to) noexcept;

class RegistrationTable;

/// Everything penstock asks of a device. Complete: an implementation has no optional entries and makes
/// nothing synchronous that is described as enqueued. All entries are thread-safe, and all but the noexcept
/// ones throw DeviceError, also for a failure of earlier asynchronous work that comes to light in them. In a
/// child of fork every entry but the noexcept ones throws a DeviceError named PENSTOCK_FORKED, and those do
/// nothing.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual const DeviceInfo& info() const noexcept = 0;
  [[nodiscard]] virtual DeviceMemory memory() const = 0;

  // Streams. `destroy` lets queued work finish; it does not block.
  virtual StreamHandle stream_create(StreamPriority priority) = 0;
  virtual void stream_destroy(StreamHandle stream) noexcept = 0;
  /// True when all work enqueued so far is done. Does not block.
  [[nodiscard]] virtual bool stream_query(StreamHandle stream) = 0;
  /// Blocks the host until all work enqueued so far is done.
  virtual void stream_synchronize(StreamHandle stream) = 0;
  /// Later work on `stream` waits for what `event` was last recorded to mark; an event never recorded is
  /// done.
  virtual void stream_wait_event(StreamHandle stream, EventHandle event) = 0;
  /// Later work on `stream` waits until `*word >= value` (compared as a cyclic 32-bit difference). `word`
  /// lies in locked memory. Only for gating a measurement: the device must not depend on work queued behind
  /// the wait.
  virtual void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) = 0;
  /// Keeps `stream` (and on a GPU, one multiprocessor) busy for `seconds`, in place of a kernel.
  virtual void stream_occupy(StreamHandle stream, double seconds) = 0;

  // Events.
  virtual EventHandle event_create(EventTiming timing, EventWait wait) = 0;
  virtual void event_destroy(EventHandle event) noexcept = 0;
  virtual void event_record(EventHandle event, StreamHandle stream) = 0;
  /// True when the work marked by the last record is done, or nothing was recorded. Does not block.
  [[nodiscard]] virtual bool event_query(EventHandle event) = 0;
  /// Blocks the host until event_query would be true.
  virtual void event_synchronize(EventHandle event) = 0;
  /// Seconds between two recorded, finished events made with EventTiming::on; throws otherwise.
  [[nodiscard]] virtual double event_elapsed(EventHandle begin, EventHandle end) = 0;

  // Memory.
  /// Device memory aligned to at least 256 bytes, contents undefined. Throws OutOfMemory. May block the
  /// device.
  virtual void* device_allocate(std::size_t bytes) = 0;
  virtual void device_free(void* data) noexcept = 0;
  /// Locks the pages that hold [data, data + bytes), page-aligned both, in place and maps them for the
  /// device. `read_only`: the device must not write, which is also the way for mappings without write
  /// permission. Throws Unsupported where the kernel, a limit or the device refuses; the backend is as usable
  /// as before.
  virtual void host_register(void* data, std::size_t bytes, bool read_only) = 0;
  virtual void host_unregister(void* data) noexcept = 0;
  /// Locked host memory from the driver's own allocator (cudaHostAlloc's way), for comparison and for systems
  /// where registering is refused. Throws OutOfMemory.
  virtual void* host_allocate(std::size_t bytes) = 0;
  virtual void host_free(void* data) noexcept = 0;
  /// What the memory at `data` is to this device, other libraries' allocations included. Locked memory is
  /// reported as `pinned`. Unknown addresses are pageable.
  [[nodiscard]] virtual MemoryKind kind_of(const void* data) const = 0;
  /// Where kernels reach locked host memory. Throws InvalidArgument if it is not, Unsupported if not mapped.
  [[nodiscard]] virtual void* device_address(void* locked) const = 0;

  // Work, enqueued; none of it blocks the host except where a source or destination is pageable, which is
  // allowed and then behaves as the driver's own copy does.
  virtual void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
                    StreamHandle stream) = 0;
  virtual void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) = 0;
  /// Copies pieces of locked host memory to the device or back by the copy engines, which keep no
  /// multiprocessor from the consumer's kernels; in no order among themselves. `pieces` is read before the
  /// call returns.
  virtual void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) = 0;
  /// Copies `count` pieces in one go by a kernel. `pieces` (the table) is reachable by the device and stays
  /// until done.
  virtual void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) = 0;
  /// Checks the request (InvalidArgument), then enqueues it; everything it points to stays until done. An
  /// index past `source_rows` gives a row of zero bytes, never a stray read.
  virtual void gather(const GatherRequest& request, StreamHandle stream) = 0;
  /// Checks the request (InvalidArgument), then enqueues it: the device computes the indices, the same ones
  /// as the host would. The request is copied; the memory of the indices stays until done.
  virtual void fill_order(const OrderRequest& request, StreamHandle stream) = 0;

 private:
  // What is registered with a backend lives and dies with it, so the memory layer keeps its table here rather
  // than in a table of backends for the whole process.
  friend class RegistrationTable;
  std::mutex registrations_mutex_;
  std::shared_ptr<RegistrationTable> registrations_;
};

}  // namespace penstock
