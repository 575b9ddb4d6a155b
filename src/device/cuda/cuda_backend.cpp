#include "device/cuda/cuda_backend.hpp"

#include "device/cuda/cuda_context.hpp"
#include "device/cuda/device_info.hpp"
#include "device/cuda/jpeg_decoder.hpp"
#include "device/cuda/kernels.hpp"
#include "device/gather_rules.hpp"
#include "device/order_rules.hpp"
#include "device/shared/mapping.hpp"
#include "device/split_rules.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using namespace cuda;

cuda::Stream as_stream(StreamHandle handle) { return static_cast<cuda::Stream>(handle); }
cuda::Event as_event(EventHandle handle) { return static_cast<cuda::Event>(handle); }
Address as_address(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// Measured with copies of 32 KiB: in calls of 1024 and more, each copy took up to a third longer. Calls of
// 128 cost more in calls.
constexpr std::size_t kCopiesOfACall = 256;

DeviceMemory host_memory() {
  struct sysinfo system{};
  if (sysinfo(&system) != 0) return {};
  return {.total = std::size_t{system.totalram} * system.mem_unit,
          .free = std::size_t{system.freeram} * system.mem_unit};
}

void refuse_null(const void* pointer) {
  if (pointer == nullptr) throw InvalidArgument("a null pointer was given for work of more than 0 bytes");
}

/// The pieces that are not empty, in the form that the driver takes.
struct CopyBatch {
  std::vector<Address> destinations;
  std::vector<Address> sources;
  std::vector<std::size_t> sizes;

  void assign(std::span<const CopyPiece> pieces) {
    destinations.clear();
    sources.clear();
    sizes.clear();
    for (const CopyPiece& piece : pieces) {
      if (piece.bytes == 0) continue;
      refuse_null(piece.destination);
      refuse_null(piece.source);
      destinations.push_back(as_address(piece.destination));
      sources.push_back(as_address(piece.source));
      sizes.push_back(piece.bytes);
    }
  }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Driver& driver, DeviceInfo info)
      : driver_(driver),
        info_(std::move(info)),
        device_(find_device(driver, info_.index)),
        context_(driver, device_),
        kernels_(context_, info_.multiprocessors) {
    call(context_, driver_.ctx_get_stream_priority_range, &least_priority_, &greatest_priority_);
  }

  [[nodiscard]] const DeviceInfo& info() const noexcept override { return info_; }

  [[nodiscard]] DeviceMemory memory() const override {
    DeviceMemory memory;
    call(context_, driver_.mem_get_info, &memory.free, &memory.total);
    return memory;
  }

  [[nodiscard]] ContextHandle context() const noexcept override { return context_.get(); }

  [[nodiscard]] bool can_reach(const Backend& peer) const override {
    Ordinal other = 0;
    int reaches = 0;
    call(context_, driver_.device_get, &other, peer.info().index);
    call(context_, driver_.device_can_access_peer, &reaches, device_, other);
    return reaches != 0;
  }

  // Copies then take plain addresses: each range of memory has the same one on all GPUs.
  void enable_peer(const Backend& peer) override {
    const Result result =
        try_call(context_, driver_.ctx_enable_peer_access, static_cast<Context>(peer.context()), 0u);
    // Another device object of this GPU may have done so, or another library.
    if (result != kPeerAccessAlreadyEnabled) driver_.check(result, driver_.ctx_enable_peer_access.name);
  }

  StreamHandle stream_create(StreamPriority priority) override {
    cuda::Stream stream = nullptr;
    call(context_, driver_.stream_create, &stream, kStreamNonBlocking,
         priority == StreamPriority::high ? greatest_priority_ : least_priority_);
    return stream;
  }

  void stream_destroy(StreamHandle stream) noexcept override {
    release(context_, driver_.stream_destroy, as_stream(stream));
  }

  [[nodiscard]] bool stream_query(StreamHandle stream) override {
    return is_done(driver_.stream_query, as_stream(stream));
  }

  void stream_synchronize(StreamHandle stream) override {
    call(context_, driver_.stream_synchronize, as_stream(stream));
  }

  void stream_wait_event(StreamHandle stream, EventHandle event) override {
    call(context_, driver_.stream_wait_event, as_stream(stream), as_event(event), 0u);
  }

  void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) override {
    const void* address = device_address(const_cast<std::uint32_t*>(word));
    call(context_, driver_.stream_wait_value32, as_stream(stream), as_address(address), value,
         kStreamWaitValueGeq);
  }

  void stream_occupy(StreamHandle stream, double seconds) override {
    kernels_.occupy(static_cast<std::uint64_t>(std::max(seconds, 0.0) * 1e9), as_stream(stream));
  }

  EventHandle event_create(EventTiming timing, EventWait wait) override {
    cuda::Event event = nullptr;
    const unsigned sleep = wait == EventWait::sleep ? kEventBlockingSync : kEventDefault;
    call(context_, driver_.event_create, &event,
         sleep | (timing == EventTiming::on ? kEventDefault : kEventDisableTiming));
    return event;
  }

  void event_destroy(EventHandle event) noexcept override {
    release(context_, driver_.event_destroy, as_event(event));
  }

  void event_record(EventHandle event, StreamHandle stream) override {
    call(context_, driver_.event_record, as_event(event), as_stream(stream));
  }

  [[nodiscard]] bool event_query(EventHandle event) override {
    return is_done(driver_.event_query, as_event(event));
  }

  void event_synchronize(EventHandle event) override {
    call(context_, driver_.event_synchronize, as_event(event));
  }

  [[nodiscard]] double event_elapsed(EventHandle begin, EventHandle end) override {
    // The first version takes a lock of the context: 3 µs if another thread enqueues work, and not 0.1.
    const auto& elapsed_time =
        driver_.event_elapsed_time_2 ? driver_.event_elapsed_time_2 : driver_.event_elapsed_time;
    float milliseconds = 0;
    call(context_, elapsed_time, &milliseconds, as_event(begin), as_event(end));
    return double{milliseconds} / 1e3;
  }

  void* device_allocate(std::size_t bytes) override {
    Address address = 0;
    const Result result = try_call(context_, driver_.mem_alloc, &address, bytes);
    if (result == kOutOfMemory) {
      const DeviceMemory now = memory();
      throw OutOfMemory(fmt::format("device memory of {}", info_.spec), bytes, now.total - now.free, now.free,
                        "Other processes and libraries share it.");
    }
    driver_.check(result, driver_.mem_alloc.name);
    return reinterpret_cast<void*>(address);
  }

  // The driver can name any allocation of cuMemAlloc to other processes.
  void* device_allocate_shared(std::size_t bytes) override { return device_allocate(bytes); }

  void device_free(void* data) noexcept override {
    if (data != nullptr) release(context_, driver_.mem_free, as_address(data));
  }

  void host_register(void* data, std::size_t bytes, bool read_only) override {
    check_pages(data, bytes);
    unsigned flags = kHostRegisterPortable | kHostRegisterDeviceMap;
    if (read_only && read_attribute(driver_, device_, DeviceAttribute::read_only_host_register) != 0) {
      flags |= kHostRegisterReadOnly;
    }
    const Result result = try_call(context_, driver_.mem_host_register, data, bytes, flags);
    if (result != kSuccess) refuse_registration(result, data, bytes, read_only);
  }

  void host_unregister(void* data) noexcept override { release(context_, driver_.mem_host_unregister, data); }

  void* host_allocate(std::size_t bytes) override {
    void* data = nullptr;
    const Result result =
        try_call(context_, driver_.mem_host_alloc, &data, bytes, kHostAllocPortable | kHostAllocDeviceMap);
    if (result == kOutOfMemory) {
      const DeviceMemory now = host_memory();
      throw OutOfMemory("the driver's locked host memory", bytes, now.total - now.free, now.free,
                        "The host has no memory left, or a limit on locked memory (ulimit -l) is reached.");
    }
    driver_.check(result, driver_.mem_host_alloc.name);
    return data;
  }

  void host_free(void* data) noexcept override {
    if (data != nullptr) release(context_, driver_.mem_free_host, data);
  }

  [[nodiscard]] MemoryKind kind_of(const void* data) const override {
    const Pointer pointer = look_up(data, 2);
    if (pointer.managed != 0 || pointer.type == kMemoryTypeDevice) return MemoryKind::device;
    return pointer.type == kMemoryTypeHost ? MemoryKind::pinned : MemoryKind::pageable;
  }

  [[nodiscard]] bool owns(const void* data) const override {
    const Pointer pointer = look_up(data, 4);
    return pointer.managed != 0 || (pointer.type == kMemoryTypeDevice && pointer.ordinal == info_.index);
  }

  // Enabled peer access covers memory of cuMemAlloc, which is what other processes may open, too. Memory of
  // cuMemMap and of pools is open to GPUs that its owner names, and nothing tells which.
  [[nodiscard]] bool is_open_to_peers(const void* data) const override {
    Sharing sharing;
    const Result result = look_up_sharing(as_address(data), sharing);
    if (result == kInvalidValue) return false;
    driver_.check(result, driver_.pointer_get_attributes.name);
    return sharing.ipc != 0 || sharing.managed != 0 || !tells_ipc();
  }

  [[nodiscard]] void* device_address(void* locked) const override {
    const Pointer pointer = look_up(locked, 3);
    if (pointer.managed != 0 || pointer.type != kMemoryTypeHost) {
      throw InvalidArgument(
          fmt::format("the memory at {} is not locked host memory, so {} cannot reach it; register it first",
                      locked, info_.spec));
    }
    if (pointer.device == nullptr) {
      throw Unsupported(fmt::format(
          "the memory at {} is locked, but not mapped for {}; lock it with a Registration or a pool", locked,
          info_.spec));
    }
    return pointer.device;
  }

  [[nodiscard]] PeerMemoryHandle memory_export(const void* data) const override {
    const Pointer pointer = look_up(data, 4);
    if (pointer.type != kMemoryTypeDevice || pointer.ordinal != info_.index) {
      throw InvalidArgument(fmt::format(
          "the memory at {} is not device memory of {}, which alone can be named to other processes", data,
          info_.spec));
    }
    Address begin = 0;
    std::size_t bytes = 0;
    call(context_, driver_.mem_get_address_range, &begin, &bytes, as_address(data));
    IpcMemoryHandle native{};
    const Result result = try_call(context_, driver_.ipc_get_mem_handle, &native, begin);
    if (result == kInvalidValue || result == kNotSupported) {
      throw Unsupported(fmt::format(
          "the memory at {} cannot be named to other processes ({}): the driver does so only with memory of "
          "cuMemAlloc; allocate it with Device::allocate_shared",
          data, driver_.error_name(result)));
    }
    driver_.check(result, driver_.ipc_get_mem_handle.name);
    const std::uint64_t offset = as_address(data) - begin;
    PeerMemoryHandle handle{.offset = offset, .bytes = bytes - offset};
    static_assert(sizeof native == sizeof handle.native);
    std::memcpy(handle.native.data(), &native, sizeof native);
    return handle;
  }

  [[nodiscard]] void* memory_import(const PeerMemoryHandle& handle) override {
    IpcMemoryHandle native{};
    std::memcpy(&native, handle.native.data(), sizeof native);
    Address begin = 0;
    const Result result =
        try_call(context_, driver_.ipc_open_mem_handle, &begin, native, kIpcLazyEnablePeerAccess);
    switch (result) {
      case kInvalidContext:  // of the process that has named it
      case kMapFailed:
      case kPeerAccessUnsupported:
      case kTooManyPeers:
      case kNotPermitted:
      case kNotSupported:
        throw Unsupported(
            fmt::format("{} cannot map the memory of another process ({}): its GPU has no link to this one, "
                        "the container "
                        "lacks it, or the memory is this process's own. Check `nvidia-smi topo -p2p rw`.",
                        info_.spec, driver_.error_name(result)));
      default:
        driver_.check(result, driver_.ipc_open_mem_handle.name);
    }
    return reinterpret_cast<void*>(begin);
  }

  void memory_close(void* imported) noexcept override {
    if (imported == nullptr) return;
    release(context_, driver_.ctx_synchronize);
    release(context_, driver_.ipc_close_mem_handle, as_address(imported));
  }

  void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
            StreamHandle stream) override {
    if (bytes == 0) return;
    refuse_null(destination);
    refuse_null(source);
    switch (direction) {
      case CopyDirection::h2d:
        return call(context_, driver_.memcpy_h2d_async, as_address(destination), source, bytes,
                    as_stream(stream));
      case CopyDirection::d2h:
        return call(context_, driver_.memcpy_d2h_async, destination, as_address(source), bytes,
                    as_stream(stream));
      case CopyDirection::d2d:
        return call(context_, driver_.memcpy_d2d_async, as_address(destination), as_address(source), bytes,
                    as_stream(stream));
    }
  }

  void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) override {
    // The driver refuses batches on the default stream.
    if (!driver_.memcpy_batch_async || stream == nullptr) {
      for (const CopyPiece& piece : pieces)
        copy(piece.destination, piece.source, piece.bytes, direction, stream);
      return;
    }
    for (std::size_t first = 0; first < pieces.size(); first += kCopiesOfACall) {
      copy_some(pieces.subspan(first, std::min(kCopiesOfACall, pieces.size() - first)), stream);
    }
  }

  void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) override {
    if (bytes == 0) return;
    refuse_null(destination);
    call(context_, driver_.memset_d8_async, as_address(destination), value, bytes, as_stream(stream));
  }

  void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) override {
    if (count == 0) return;
    refuse_null(pieces);
    kernels_.copy_pieces(pieces, count, as_stream(stream));
  }

  void gather(const GatherRequest& request, StreamHandle stream) override {
    check_gather(request);
    kernels_.gather(request, as_stream(stream));
  }

  void split_rows(const SplitRequest& request, StreamHandle stream) override {
    check_split(request);
    kernels_.split_rows(request, as_stream(stream));
  }

  void fill_order(const OrderRequest& request, StreamHandle stream) override {
    check_order(request);
    kernels_.fill_order(request, as_stream(stream));
  }

  void hash(const HashRequest& request, StreamHandle stream) override {
    kernels_.hash(request, as_stream(stream));
  }

  [[nodiscard]] std::unique_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) override {
    return make_nvjpeg_decoder(*this, context_, kernels_, options);
  }

 private:
  struct Sharing {
    unsigned ipc = 0;      // other processes may open it
    unsigned managed = 0;  // by the driver, for all devices
  };

  [[nodiscard]] Result look_up_sharing(Address data, Sharing& sharing) const {
    std::array attributes{PointerAttribute::is_legacy_cuda_ipc_capable, PointerAttribute::is_managed};
    std::array<void*, 2> answers{&sharing.ipc, &sharing.managed};
    return try_call(context_, driver_.pointer_get_attributes, 2u, attributes.data(), answers.data(), data);
  }

  // Where processes cannot share memory at all, what they could share tells nothing.
  [[nodiscard]] bool tells_ipc() const {
    std::call_once(ipc_asked_, [&] {
      Address memory = 0;
      Sharing sharing;
      if (try_call(context_, driver_.mem_alloc, &memory, std::size_t{1}) != kSuccess) return;
      tells_ipc_ = look_up_sharing(memory, sharing) != kSuccess || sharing.ipc != 0;
      release(context_, driver_.mem_free, memory);
    });
    return tells_ipc_;
  }

  void copy_some(std::span<const CopyPiece> pieces, StreamHandle stream) const {
    thread_local CopyBatch batch;
    batch.assign(pieces);
    if (batch.sizes.empty()) return;
    BatchedCopyAttributes attributes{.source_access_order = kSourceAccessOrderStream,
                                     .flags = kPreferOverlapWithCompute};
    std::size_t first = 0;
    std::size_t failed = 0;
    call(context_, driver_.memcpy_batch_async, batch.destinations.data(), batch.sources.data(),
         batch.sizes.data(), batch.sizes.size(), &attributes, &first, std::size_t{1}, &failed,
         as_stream(stream));
  }

  struct Pointer {
    unsigned type = 0;
    unsigned managed = 0;
    void* device = nullptr;
    int ordinal = -1;
  };

  // Looks up the first `count` of four: memory type, whether it is managed, address, device. Each takes time.
  [[nodiscard]] Pointer look_up(const void* data, unsigned count) const {
    Pointer pointer;
    std::array attributes{PointerAttribute::memory_type, PointerAttribute::is_managed,
                          PointerAttribute::device_pointer, PointerAttribute::device_ordinal};
    std::array<void*, 4> answers{&pointer.type, &pointer.managed, &pointer.device, &pointer.ordinal};
    const Result result = try_call(context_, driver_.pointer_get_attributes, count, attributes.data(),
                                   answers.data(), as_address(data));
    if (result == kInvalidValue) return {};
    driver_.check(result, driver_.pointer_get_attributes.name);
    return pointer;
  }

  template <typename Entry, typename Handle>
  [[nodiscard]] bool is_done(const Entry& entry, Handle handle) const {
    const Result result = try_call(context_, entry, handle);
    if (result == kNotReady) return false;
    driver_.check(result, entry.name);
    return true;
  }

  static void check_pages(void* data, std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (data == nullptr || bytes == 0 || begin % page != 0 || bytes % page != 0 || begin + bytes < begin) {
      throw InvalidArgument(
          fmt::format("only whole pages can be registered, and {} bytes at {} are not", bytes, data));
    }
  }

  [[noreturn]] void refuse_registration(Result result, void* data, std::size_t bytes, bool read_only) const {
    const std::string what = fmt::format("{} at {} cannot be registered with {} ({})", format_bytes(bytes),
                                         data, info_.spec, driver_.error_name(result));
    switch (result) {
      case kOutOfMemory:
      case kOperatingSystem:
        throw Unsupported(what + ": the system refuses to lock so much memory; raise the limit (ulimit -l)");
      case kHostMemoryAlreadyRegistered:
        throw Unsupported(what + ": part of it is registered already, by this program or another library");
      case kNotPermitted:
      case kNotSupported:
        throw Unsupported(what + ": this device, system or kind of mapping does not allow it");
      case kInvalidValue:
        break;
      default:
        driver_.fail(result, driver_.mem_host_register.name);
    }
    const MappingKind mapping = inspect_mapping(data, bytes);
    if (!mapping.readable) throw InvalidArgument(what + ": it is not all mapped for reading");
    if (!mapping.writable) {
      throw Unsupported(what + (read_only
                                    ? ": it is mapped without write permission, and this device or system "
                                      "cannot lock such memory"
                                    : ": it is mapped without write permission; register it read-only"));
    }
    throw Unsupported(what + ": the driver does not take this kind of mapping");
  }

  const Driver& driver_;
  const DeviceInfo info_;
  const Ordinal device_;
  const PrimaryContext context_;
  const Kernels kernels_;
  mutable std::once_flag ipc_asked_;
  mutable bool tells_ipc_ = true;
  int least_priority_ = 0;
  int greatest_priority_ = 0;
};

}  // namespace

std::shared_ptr<Backend> open_cuda(int index, const DeviceOptions& options) {
  const Driver& driver = load_driver(options.driver_library);
  const int count = count_devices(driver);
  if (count == 0) driver.fail(kNoDevice, driver.device_get_count.name);
  if (index < 0 || index >= count) {
    throw InvalidArgument(
        count == 1 ? fmt::format("cuda:{} is not there: this machine shows one GPU, cuda:0", index)
                   : fmt::format("cuda:{} is not there: this machine shows {} GPUs, cuda:0 to cuda:{}", index,
                                 count, count - 1));
  }
  return std::make_shared<CudaBackend>(driver, read_device_info(driver, index));
}

void list_cuda(const DeviceOptions& options, DeviceInventory& inventory) {
  try {
    const Driver& driver = load_driver(options.driver_library);
    const int count = count_devices(driver);
    if (count == 0) inventory.missing.emplace_back("The NVIDIA driver is there but shows no GPU.");
    for (int index = 0; index < count; ++index) {
      try {
        inventory.devices.push_back(read_device_info(driver, index));
      } catch (const Error& error) {
        inventory.missing.push_back(fmt::format("cuda:{} does not answer: {}", index, error.what()));
      }
    }
  } catch (const Error& error) {
    inventory.missing.emplace_back(error.what());
  }
}

bool means_no_gpu(const DeviceError& error) noexcept {
  if (error.name() == kNoPermission || error.name() == kDriverTooOld) return false;
  return error.name() == kNoDriver || error.code() == kNoDevice || error.code() == kStubLibrary;
}

}  // namespace penstock
