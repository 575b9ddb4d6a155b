#include "device/host/host_backend.hpp"

#include "device/gather_rules.hpp"
#include "device/host/host_core.hpp"
#include "device/host/host_event.hpp"
#include "device/host/host_peer_memory.hpp"
#include "device/host/host_stream.hpp"
#include "device/order_rules.hpp"
#include "device/split_rules.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace penstock {

namespace {

/// The most bytes of pageable memory that the driver copies into its own command buffer at the call.
constexpr std::size_t kTakenAtCall = 64 * kKiB;

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostOptions& options)
      : info_(host_device_info(options)),
        link_{options.peer_bytes_per_second, options.latency, options.late},
        core_(std::make_shared<HostCore>(options, info_.memory_bytes)) {}
  ~HostBackend() override;

  const DeviceInfo& info() const noexcept override { return info_; }
  DeviceMemory memory() const override;

  ContextHandle context() const noexcept override { return core_.get(); }
  bool can_reach(const Backend& peer) const override;
  void enable_peer(const Backend& peer) override;

  StreamHandle stream_create(StreamPriority priority) override;
  void stream_destroy(StreamHandle stream) noexcept override;
  bool stream_query(StreamHandle stream) override;
  void stream_synchronize(StreamHandle stream) override;
  void stream_wait_event(StreamHandle stream, EventHandle event) override;
  void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) override;
  void stream_occupy(StreamHandle stream, double seconds) override;

  EventHandle event_create(EventTiming timing, EventWait wait) override;
  void event_destroy(EventHandle event) noexcept override;
  void event_record(EventHandle event, StreamHandle stream) override;
  bool event_query(EventHandle event) override;
  void event_synchronize(EventHandle event) override;
  double event_elapsed(EventHandle begin, EventHandle end) override;

  void* device_allocate(std::size_t bytes) override;
  void* device_allocate_shared(std::size_t bytes) override;
  void device_free(void* data) noexcept override;
  void host_register(void* data, std::size_t bytes, bool read_only) override;
  void host_unregister(void* data) noexcept override;
  void* host_allocate(std::size_t bytes) override;
  void host_free(void* data) noexcept override;
  MemoryKind kind_of(const void* data) const override;
  bool owns(const void* data) const override;
  bool is_open_to_peers(const void* data) const override;
  void* device_address(void* locked) const override;
  PeerMemoryHandle memory_export(const void* data) const override;
  void* memory_import(const PeerMemoryHandle& handle) override;
  void memory_close(void* imported) noexcept override;

  void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
            StreamHandle stream) override;
  void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) override;
  void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) override;
  void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) override;
  void gather(const GatherRequest& request, StreamHandle stream) override;
  void split_rows(const SplitRequest& request, StreamHandle stream) override;
  void fill_order(const OrderRequest& request, StreamHandle stream) override;
  void hash(const HashRequest& request, StreamHandle stream) override;
  [[nodiscard]] std::unique_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) override;

 private:
  /// What one end of a copy is, and the device that owns it if it is device memory. Memory of another process
  /// has no owner here.
  struct End {
    RangeKind range;
    HostCore* owner = nullptr;
    Wire* wire = nullptr;  ///< on which the owner sends to its peers
  };

  [[nodiscard]] bool forked() const noexcept { return generation_ != fork_generation(); }
  void enter(const char* call) const;
  HostStream& stream_of(StreamHandle handle);
  static HostEvent& event_of(EventHandle handle, const char* call);
  std::uint64_t enqueue(HostStream& stream, const Work& work);
  [[nodiscard]] End find(const void* data, std::size_t bytes) const;
  [[nodiscard]] Wires wires_of(CopyDirection direction, const End& to, const End& from) const noexcept;
  void require_reach(const void* data, std::size_t bytes, bool write, const char* call,
                     const char* what) const;
  void drain() noexcept;

  const std::uint64_t generation_ = fork_generation();
  const DeviceInfo info_;
  const HostPeerLink link_;
  const std::shared_ptr<HostCore> core_;
  mutable std::mutex peers_mutex_;
  std::vector<std::weak_ptr<HostCore>> peers_;                            // guarded by peers_mutex_
  std::map<const std::byte*, std::unique_ptr<HostPeerMemory>> imported_;  // by their begin; the same mutex
  std::mutex default_mutex_;
  std::shared_ptr<HostStream> default_;  // guarded by default_mutex_ until it is made
};

[[noreturn]] void refuse(const char* call, const std::string& detail) {
  throw DeviceError("PENSTOCK_INVALID_VALUE", call, 1, detail);
}

/// Refuses a copy unless the direction and the kinds agree and each end lies within one range of memory.
void check_ends(const RangeKind& destination, const RangeKind& source, CopyDirection direction) {
  if (!destination.whole || !source.whole) {
    refuse("copy", "One end runs past the end of the device or locked memory that it begins in.");
  }
  if (!destination.writable) {
    refuse("copy", "The destination was registered read-only, or is memory of another process.");
  }
  const bool to_device = destination.kind == MemoryKind::device;
  const bool from_device = source.kind == MemoryKind::device;
  const bool agree = direction == CopyDirection::h2d ? to_device && !from_device
                     : direction == CopyDirection::d2h
                         ? from_device && !to_device
                         : is_device_accessible(destination.kind) && is_device_accessible(source.kind);
  if (!agree) {
    refuse("copy",
           fmt::format("{} from {} to {} memory: the direction and the kinds disagree. To copy from or "
                       "to another device, call Device::enable_peer first.",
                       copy_direction_name(direction), memory_kind_name(source.kind),
                       memory_kind_name(destination.kind)));
  }
}

HostBackend::~HostBackend() {
  if (forked()) {
    // Where its shared memory lay, the child may have something else by now, so nothing is unmapped.
    static_cast<void>(new std::shared_ptr<HostCore>(core_));
    return;
  }
  core_->closing.store(true, std::memory_order_relaxed);
  core_->for_each_live([](const auto& stream) { stream->end(); });
  core_->late_book->forget(*core_);
}

void HostBackend::enter(const char* call) const {
  if (forked()) {
    throw DeviceError("PENSTOCK_FORKED", call, 2,
                      "This process was forked after the device was opened; open it again in the child.");
  }
  if (core_->illegal_address.load(std::memory_order_relaxed)) {
    throw DeviceError(
        "PENSTOCK_ILLEGAL_ADDRESS", call, 3,
        "An earlier copy of pieces, or split of rows, had one outside device and locked memory.");
  }
}

HostStream& HostBackend::stream_of(StreamHandle handle) {
  if (handle != nullptr) return *static_cast<HostStream*>(handle);
  const std::lock_guard lock(default_mutex_);
  if (default_ == nullptr) default_ = HostStream::start(core_);
  return *default_;
}

HostEvent& HostBackend::event_of(EventHandle handle, const char* call) {
  if (handle == nullptr) refuse(call, "The event is null.");
  return *static_cast<HostEvent*>(handle);
}

std::uint64_t HostBackend::enqueue(HostStream& stream, const Work& work) {
  return core_->late ? core_->late_book->enqueue(stream, work) : stream.enqueue(work);
}

void HostBackend::require_reach(const void* data, std::size_t bytes, bool write, const char* call,
                                const char* what) const {
  const RangeKind kind = core_->memory.kind_of(data, bytes);
  if (is_device_accessible(kind.kind) && kind.whole && (kind.writable || !write)) return;
  refuse(call, fmt::format("The {} at {} is not device or locked memory that the device may {} throughout.",
                           what, data, write ? "write" : "read"));
}

HostBackend::End HostBackend::find(const void* data, std::size_t bytes) const {
  const RangeKind range = core_->memory.kind_of(data, bytes);
  if (range.kind != MemoryKind::pageable) return {range, core_.get(), &core_->to_peers};
  const std::lock_guard lock(peers_mutex_);
  for (const std::weak_ptr<HostCore>& each : peers_) {
    const std::shared_ptr<HostCore> peer = each.lock();
    if (peer == nullptr) continue;
    const RangeKind there = peer->memory.kind_of(data, bytes);
    if (there.kind == MemoryKind::device) return {there, peer.get(), &peer->to_peers};
  }
  const auto* const begin = static_cast<const std::byte*>(data);
  if (auto next = imported_.upper_bound(begin); next != imported_.begin()) {
    HostPeerMemory& memory = *(--next)->second;
    const auto offset = static_cast<std::size_t>(begin - next->first);
    const std::size_t size = memory.pages.bytes().size();
    if (offset < size) {
      const RangeKind there{.kind = MemoryKind::device, .writable = false, .whole = bytes <= size - offset};
      return {there, nullptr, &memory.wire};
    }
  }
  return {range, core_.get(), nullptr};
}

Wires HostBackend::wires_of(CopyDirection direction, const End& to, const End& from) const noexcept {
  if (direction == CopyDirection::h2d) return {&core_->to_device};
  if (direction == CopyDirection::d2h) return {&core_->to_host};
  if (to.owner == from.owner) return {};
  return {from.wire, &to.owner->from_peers};
}

// The driver also waits before it takes memory away, since work may still use it.
void HostBackend::drain() noexcept {
  core_->for_each_live([](const auto& stream) { stream->wait(stream->newest()); });
}

DeviceMemory HostBackend::memory() const {
  enter("memory");
  return core_->memory.memory();
}

bool HostBackend::can_reach(const Backend& peer) const {
  enter("can_reach");
  return static_cast<const HostCore*>(peer.context())->late == core_->late;
}

void HostBackend::enable_peer(const Backend& peer) {
  enter("enable_peer");
  const std::shared_ptr<HostCore> core = static_cast<HostCore*>(peer.context())->shared_from_this();
  const std::lock_guard lock(peers_mutex_);
  std::erase_if(peers_, [&](const std::weak_ptr<HostCore>& each) {
    const std::shared_ptr<HostCore> other = each.lock();
    return other == nullptr || other == core;
  });
  peers_.push_back(core);
}

StreamHandle HostBackend::stream_create(StreamPriority /*priority*/) {
  enter("stream_create");
  return HostStream::start(core_).get();
}

void HostBackend::stream_destroy(StreamHandle stream) noexcept {
  if (stream == nullptr || forked()) return;
  // The thread may free the stream as soon as it ends.
  const auto held = static_cast<HostStream*>(stream)->shared_from_this();
  held->end();
}

bool HostBackend::stream_query(StreamHandle stream) {
  enter("stream_query");
  return stream_of(stream).query();
}

void HostBackend::stream_synchronize(StreamHandle stream) {
  enter("stream_synchronize");
  HostStream& target = stream_of(stream);
  target.wait(target.newest());
  enter("stream_synchronize");
}

void HostBackend::stream_wait_event(StreamHandle stream, EventHandle event) {
  enter("stream_wait_event");
  event_of(event, "stream_wait_event").enqueue_wait(stream_of(stream));
}

void HostBackend::stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) {
  enter("stream_wait_value");
  require_reach(word, sizeof *word, false, "stream_wait_value", "word");
  if (reinterpret_cast<std::uintptr_t>(word) % sizeof *word != 0) {
    refuse("stream_wait_value", "The word is not aligned to 4 bytes.");
  }
  stream_of(stream).enqueue(WaitValueWork{word, value});
}

void HostBackend::stream_occupy(StreamHandle stream, double seconds) {
  enter("stream_occupy");
  if (!(seconds >= 0) || seconds > 1e6) refuse("stream_occupy", "The time is not from 0 to 1e6 seconds.");
  stream_of(stream).enqueue(OccupyWork{std::chrono::nanoseconds(std::llround(seconds * 1e9))});
}

EventHandle HostBackend::event_create(EventTiming timing, EventWait /*wait*/) {
  enter("event_create");
  return new HostEvent(timing);
}

void HostBackend::event_destroy(EventHandle event) noexcept {
  if (event == nullptr || forked()) return;
  static_cast<HostEvent*>(event)->release();
}

void HostBackend::event_record(EventHandle event, StreamHandle stream) {
  enter("event_record");
  HostStream& target = stream_of(stream);
  if (!target.is_of(*core_)) refuse("event_record", "The stream is one of another device.");
  event_of(event, "event_record").record(target);
}

bool HostBackend::event_query(EventHandle event) {
  enter("event_query");
  return event_of(event, "event_query").query();
}

void HostBackend::event_synchronize(EventHandle event) {
  enter("event_synchronize");
  event_of(event, "event_synchronize").synchronize();
  enter("event_synchronize");
}

double HostBackend::event_elapsed(EventHandle begin, EventHandle end) {
  enter("event_elapsed");
  const auto from = event_of(begin, "event_elapsed").time();
  const auto to = event_of(end, "event_elapsed").time();
  if (!from || !to) {
    refuse("event_elapsed", "Both events must keep time, have been recorded, and be done.");
  }
  return static_cast<double>(*to - *from) / 1e9;
}

void* HostBackend::device_allocate(std::size_t bytes) {
  enter("device_allocate");
  return core_->memory.device_allocate(bytes);
}

void* HostBackend::device_allocate_shared(std::size_t bytes) {
  enter("device_allocate_shared");
  return core_->memory.device_allocate(bytes, true);
}

void HostBackend::device_free(void* data) noexcept {
  if (data == nullptr || forked()) return;
  drain();
  core_->memory.device_free(data);
}

void HostBackend::host_register(void* data, std::size_t bytes, bool read_only) {
  enter("host_register");
  core_->memory.host_register(data, bytes, read_only);
}

void HostBackend::host_unregister(void* data) noexcept {
  if (data == nullptr || forked()) return;
  drain();
  core_->memory.host_unregister(data);
}

void* HostBackend::host_allocate(std::size_t bytes) {
  enter("host_allocate");
  return core_->memory.host_allocate(bytes);
}

void HostBackend::host_free(void* data) noexcept {
  if (data == nullptr || forked()) return;
  drain();
  core_->memory.host_free(data);
}

MemoryKind HostBackend::kind_of(const void* data) const {
  enter("kind_of");
  return find(data, 1).range.kind;
}

bool HostBackend::owns(const void* data) const {
  enter("owns");
  return core_->memory.kind_of(data, 1).kind == MemoryKind::device;
}

bool HostBackend::is_open_to_peers(const void* /*data*/) const {
  enter("is_open_to_peers");
  return true;
}

void* HostBackend::device_address(void* locked) const {
  enter("device_address");
  if (core_->memory.kind_of(locked, 1).kind == MemoryKind::pinned) return locked;
  throw InvalidArgument(
      fmt::format("the memory at {} is not locked, so the device has no address for it", locked));
}

PeerMemoryHandle HostBackend::memory_export(const void* data) const {
  enter("memory_export");
  if (core_->memory.kind_of(data, 1).kind != MemoryKind::device) {
    throw InvalidArgument(fmt::format(
        "the memory at {} is not device memory of {}, which alone can be named to other processes", data,
        info_.spec));
  }
  const HostMemory::SharedPlace place = core_->memory.find_shared(data);
  if (place.pages == nullptr) {
    throw Unsupported(fmt::format(
        "the memory at {} cannot be named to other processes: allocate it with Device::allocate_shared",
        data));
  }
  return name_host_memory(*place.pages, place.offset, place.bytes, link_);
}

void* HostBackend::memory_import(const PeerMemoryHandle& handle) {
  enter("memory_import");
  std::unique_ptr<HostPeerMemory> memory = open_host_memory(handle, link_);
  std::byte* const begin = memory->pages.bytes().data();
  const std::lock_guard lock(peers_mutex_);
  imported_.emplace(begin, std::move(memory));
  return begin;
}

void HostBackend::memory_close(void* imported) noexcept {
  if (imported == nullptr || forked()) return;
  drain();
  const std::lock_guard lock(peers_mutex_);
  imported_.erase(static_cast<const std::byte*>(imported));
}

void HostBackend::copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
                       StreamHandle stream) {
  enter("copy");
  HostStream& target = stream_of(stream);
  if (bytes == 0) return;
  if (destination == nullptr || source == nullptr) refuse("copy", "One end is null.");
  const End to = find(destination, bytes);
  const End from = find(source, bytes);
  check_ends(to.range, from.range, direction);
  if (direction != CopyDirection::d2d && (to.owner != core_.get() || from.owner != core_.get())) {
    refuse("copy",
           "Memory of another device was named. Copies between it and the host go on its own streams.");
  }
  CopyWork work{destination, source, bytes, direction, wires_of(direction, to, from), nullptr};
  const bool pageable = from.range.kind == MemoryKind::pageable || to.range.kind == MemoryKind::pageable;
  if (!pageable) {
    enqueue(target, work);
  } else if (direction == CopyDirection::h2d && bytes <= kTakenAtCall) {
    std::unique_ptr<std::byte[]> taken(new std::byte[bytes]);
    work.staged = taken.get();
    work.source = std::memcpy(work.staged, source, bytes);
    enqueue(target, work);
    static_cast<void>(taken.release());
  } else {
    target.wait(target.enqueue(work));
  }
}

void HostBackend::fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) {
  enter("fill");
  HostStream& target = stream_of(stream);
  if (bytes == 0) return;
  require_reach(destination, bytes, true, "fill", "destination");
  enqueue(target, FillWork{destination, bytes, value});
}

void HostBackend::copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) {
  for (const CopyPiece& piece : pieces) copy(piece.destination, piece.source, piece.bytes, direction, stream);
}

void HostBackend::copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) {
  enter("copy_pieces");
  HostStream& target = stream_of(stream);
  if (count == 0) return;
  require_reach(pieces, count * sizeof *pieces, false, "copy_pieces", "table of pieces");
  enqueue(target, PiecesWork{pieces, count});
}

void HostBackend::gather(const GatherRequest& request, StreamHandle stream) {
  enter("gather");
  check_gather(request);
  HostStream& target = stream_of(stream);
  const std::uint64_t row = request.row_elements * dtype_bytes(request.from);
  if (request.count == 0 || row == 0) return;
  const auto reads = [&](const void* data, std::uint64_t bytes, const char* what) {
    if (data != nullptr && bytes != 0) require_reach(data, bytes, false, "gather", what);
  };
  const std::uint64_t stride = request.row_stride_bytes != 0 ? request.row_stride_bytes : row;
  const auto reads_rows = [&](const void* data, std::uint64_t rows, const char* what) {
    if (rows != 0) reads(data, (rows - 1) * stride + row, what);
  };
  const std::uint64_t others = request.source_rows - request.head_rows;
  reads_rows(request.head, request.head_rows, "head");
  reads_rows(request.source, others, "source");
  reads(request.indices, request.count * sizeof *request.indices, "list of indices");
  reads(request.scale, request.channels * sizeof *request.scale, "scale");
  reads(request.shift, request.channels * sizeof *request.shift, "shift");
  require_reach(request.destination, request.count * request.row_elements * dtype_bytes(request.to), true,
                "gather", "destination");
  const auto on_link = [&](const void* data, std::uint64_t rows) {
    return rows != 0 && core_->memory.kind_of(data, 1).kind != MemoryKind::device;
  };
  enqueue(target,
          GatherWork{request, on_link(request.head, request.head_rows), on_link(request.source, others)});
}

void HostBackend::split_rows(const SplitRequest& request, StreamHandle stream) {
  enter("split_rows");
  check_split(request);
  HostStream& target = stream_of(stream);
  if (request.count == 0 || request.value_count == 0) return;
  const auto reads = [&](const void* data, std::uint64_t bytes, const char* what) {
    require_reach(data, bytes, false, "split_rows", what);
  };
  const std::uint64_t segments = (request.row_bytes + kSplitSegmentBytes - 1) / kSplitSegmentBytes;
  reads(request.rows, request.count * request.row_bytes, "table of rows");
  reads(request.values, request.value_count * sizeof *request.values, "table of values");
  reads(request.firsts, (segments + 1) * sizeof *request.firsts, "table of segments");
  require_reach(request.destination, 1, true, "split_rows", "destination");
  enqueue(target, SplitWork{request, core_->memory.kind_of(request.rows, 1).kind != MemoryKind::device});
}

void HostBackend::fill_order(const OrderRequest& request, StreamHandle stream) {
  enter("fill_order");
  check_order(request);
  HostStream& target = stream_of(stream);
  if (request.run.count == 0) return;
  require_reach(request.indices, request.run.count * sizeof *request.indices, true, "fill_order",
                "list of indices");
  enqueue(target, OrderWork{request});
}

void HostBackend::hash(const HashRequest& request, StreamHandle stream) {
  enter("hash");
  HostStream& target = stream_of(stream);
  require_reach(request.source, request.bytes, false, "hash", "memory");
  require_reach(request.sums, HashRequest::sum_count(request.bytes) * sizeof *request.sums, true, "hash",
                "sums");
  enqueue(target, HashWork{request});
}

std::unique_ptr<JpegDecoder> HostBackend::make_jpeg_decoder(const JpegDecoderOptions& /*options*/) {
  throw Unsupported(
      fmt::format("{} decodes no pictures, since it is no GPU: have the host's threads decode.", info_.spec));
}

}  // namespace

std::shared_ptr<Backend> open_host(const HostOptions& options) {
  return std::make_shared<HostBackend>(options);
}

}  // namespace penstock
