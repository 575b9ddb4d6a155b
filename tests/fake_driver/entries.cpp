#include "run/driver.hpp"
#include "state.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

/// The driver's functions. Each starts with `begin`, which counts the call, and fails it if a test asked for
/// that.
namespace fake_cuda {

namespace {

using penstock::cuda::BatchedCopyAttributes;
using penstock::cuda::Context;
using penstock::cuda::DeviceAttribute;
using penstock::cuda::Event;
using penstock::cuda::Function;
using penstock::cuda::Module;
using penstock::cuda::Ordinal;
using penstock::cuda::PageAccess;
using penstock::cuda::PageFlags;
using penstock::cuda::PageProperties;
using penstock::cuda::Pages;
using penstock::cuda::PointerAttribute;
using penstock::cuda::Stream;
using penstock::cuda::Uuid;
using penstock::run::BoxCopy;
using penstock::run::BoxSide;
using penstock::run::MemoryType;
using penstock::run::PlaneCopy;

using HostFunction = void (*)(void*);

/// A plain type, so that it still works for calls of static objects at the end of the process.
struct ContextStack {
  ContextState* contexts[64];
  std::size_t depth;
};

thread_local ContextStack stack{};

ContextState* current() { return stack.depth == 0 ? nullptr : stack.contexts[stack.depth - 1]; }

ContextState* from_handle(Context handle) { return reinterpret_cast<ContextState*>(handle); }
Context to_handle(ContextState* context) { return reinterpret_cast<Context>(context); }

Result begin(const char* function) { return script().enter(function); }

// For calls that need a context, which must exist and not have failed.
Result begin_in_context(const char* function) {
  if (const Result result = begin(function)) return result;
  if (current() == nullptr || !registry().is_live(current())) return kInvalidContext;
  work_for(current()->device);
  return current()->failure;
}

Result check_device(Ordinal device) {
  return device >= 0 && device < script().devices ? kSuccess : kInvalidDevice;
}

#define FAKE_BEGIN(name) \
  const Inside inside;   \
  if (const Result early = begin(#name)) return early
#define FAKE_BEGIN_IN_CONTEXT(name) \
  const Inside inside;              \
  if (const Result early = begin_in_context(#name)) return early

Result cuInit(unsigned) {
  FAKE_BEGIN(cuInit);
  if (script().init_result != kSuccess) return script().init_result;
  if (script().devices == 0) return kNoDevice;
  pid_t none = 0;
  if (script().owner.compare_exchange_strong(none, getpid())) {
    std::atexit([] { script().ended = true; });
  }
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  FAKE_BEGIN(cuDeviceGetCount);
  *count = script().devices;
  return kSuccess;
}

Result cuDeviceGet(Ordinal* device, int ordinal) {
  FAKE_BEGIN(cuDeviceGet);
  *device = ordinal;
  return check_device(ordinal);
}

Result cuDeviceGetName(char* name, int length, Ordinal device) {
  FAKE_BEGIN(cuDeviceGetName);
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return check_device(device);
}

Result cuDeviceGetUuid(Uuid* uuid, Ordinal device) {
  FAKE_BEGIN(cuDeviceGetUuid);
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(0xa0 + i);
  uuid->bytes[15] = static_cast<char>(script().first_gpu + device);
  return check_device(device);
}

Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Ordinal device) {
  FAKE_BEGIN(cuDeviceGetAttribute);
  switch (attribute) {
    case DeviceAttribute::multiprocessors:
      *value = 4;
      break;
    case DeviceAttribute::compute_major:
      *value = 9;
      break;
    case DeviceAttribute::compute_minor:
      *value = 0;
      break;
    case DeviceAttribute::read_only_host_register:
      *value = script().read_only_register;
      break;
    default:
      return kInvalidValue;
  }
  return check_device(device);
}

Result cuDeviceTotalMem(std::size_t* bytes, Ordinal device) {
  FAKE_BEGIN(cuDeviceTotalMem);
  *bytes = script().memory;
  return check_device(device);
}

Result cuDeviceGetPCIBusId(char* id, int length, Ordinal device) {
  FAKE_BEGIN(cuDeviceGetPCIBusId);
  std::snprintf(id, static_cast<std::size_t>(length), "FFFF:%02X:00.0",
                static_cast<unsigned>(script().first_gpu + device));
  return check_device(device);
}

Result cuDeviceCanAccessPeer(int* possible, Ordinal device, Ordinal peer) {
  FAKE_BEGIN(cuDeviceCanAccessPeer);
  *possible = device != peer && script().peer_access ? 1 : 0;
  const Result result = check_device(device);
  return result != kSuccess ? result : check_device(peer);
}

Result cuDevicePrimaryCtxRetain(Context* handle, Ordinal device) {
  FAKE_BEGIN(cuDevicePrimaryCtxRetain);
  if (const Result result = check_device(device)) return result;
  ContextState* context = nullptr;
  const Result result = registry().retain(device, &context);
  *handle = to_handle(context);
  return result;
}

Result cuDevicePrimaryCtxRelease(Ordinal device) {
  FAKE_BEGIN(cuDevicePrimaryCtxRelease);
  return registry().release(device);
}

Result cuCtxPushCurrent(Context handle) {
  FAKE_BEGIN(cuCtxPushCurrent);
  if (!registry().is_live(from_handle(handle)) || stack.depth == std::size(stack.contexts))
    return kInvalidContext;
  stack.contexts[stack.depth++] = from_handle(handle);
  return kSuccess;
}

Result cuCtxPopCurrent(Context* handle) {
  FAKE_BEGIN(cuCtxPopCurrent);
  if (stack.depth == 0) return kInvalidContext;
  *handle = to_handle(stack.contexts[--stack.depth]);
  return kSuccess;
}

Result cuCtxGetCurrent(Context* handle) {
  FAKE_BEGIN(cuCtxGetCurrent);
  *handle = to_handle(current());
  return kSuccess;
}

Result cuCtxGetDevice(Ordinal* device) {
  FAKE_BEGIN_IN_CONTEXT(cuCtxGetDevice);
  *device = current()->device;
  return kSuccess;
}

Result cuDevicePrimaryCtxGetState(Ordinal device, unsigned* flags, int* active) {
  FAKE_BEGIN(cuDevicePrimaryCtxGetState);
  *flags = 0;
  *active = registry().is_retained(device) ? 1 : 0;
  return check_device(device);
}

Result cuDevicePrimaryCtxReset(Ordinal device) {
  FAKE_BEGIN(cuDevicePrimaryCtxReset);
  while (registry().is_retained(device)) static_cast<void>(registry().release(device));
  return check_device(device);
}

Result cuCtxSynchronize() {
  FAKE_BEGIN_IN_CONTEXT(cuCtxSynchronize);
  current()->wait_idle();
  return current()->failure;
}

Result cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuCtxEnablePeerAccess);
  return flags != 0 ? kInvalidValue : registry().enable_peer(*current(), from_handle(peer));
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_BEGIN_IN_CONTEXT(cuCtxGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

Result cuStreamCreateWithPriority(Stream* handle, unsigned flags, int priority) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamCreateWithPriority);
  if (flags > 1) return kInvalidValue;
  const StreamTraits traits{.priority = priority, .blocking = flags != penstock::cuda::kStreamNonBlocking};
  const std::lock_guard lock(registry().mutex);
  *handle = static_cast<Stream>(registry().streams.add(Queue::start(*current(), traits)));
  return kSuccess;
}

Result cuStreamDestroy(Stream handle) {
  FAKE_BEGIN(cuStreamDestroy);
  const std::lock_guard lock(registry().mutex);
  const auto stream = registry().streams.find(handle);
  if (stream == nullptr) return kInvalidHandle;
  registry().streams.live.erase(handle);
  stream->close();
  return kSuccess;
}

#define FAKE_FIND_STREAM_BY(find, handle)                                    \
  const std::shared_ptr<Queue> stream = registry().find(handle, *current()); \
  if (stream == nullptr) return kInvalidHandle
#define FAKE_FIND_STREAM(handle) FAKE_FIND_STREAM_BY(stream_for_work, handle)

Result cuStreamQuery(Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamQuery);
  FAKE_FIND_STREAM_BY(stream, handle);
  return stream->done() ? current()->failure.load() : kNotReady;
}

Result cuStreamSynchronize(Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamSynchronize);
  FAKE_FIND_STREAM_BY(stream, handle);
  stream->wait();
  return current()->failure;
}

std::shared_ptr<EventState> find_event(Event handle) {
  const std::lock_guard lock(registry().mutex);
  return registry().events.find(handle);
}

std::shared_ptr<Mark> mark_of(const EventState& event) {
  const std::lock_guard lock(registry().mutex);
  return event.mark;
}

#define FAKE_FIND_EVENT(handle)                                 \
  const std::shared_ptr<EventState> event = find_event(handle); \
  if (event == nullptr) return kInvalidHandle

Result cuStreamWaitEvent(Stream handle, Event event_handle, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamWaitEvent);
  if (flags != 0) return kInvalidValue;
  FAKE_FIND_STREAM(handle);
  FAKE_FIND_EVENT(event_handle);
  const std::shared_ptr<Mark> mark = mark_of(*event);
  if (mark == nullptr) return kSuccess;
  stream->push("cuStreamWaitEvent", [mark] {
    mark->wait();
    return kSuccess;
  });
  return kSuccess;
}

Result cuStreamWaitValue32(Stream handle, Address address, std::uint32_t value, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamWaitValue32);
  if (flags != 0 || address % 4 != 0) return kInvalidValue;
  FAKE_FIND_STREAM(handle);
  const auto* word = static_cast<const std::uint32_t*>(memory().kernel_reads(address, 4));
  if (word == nullptr) return kInvalidValue;
  ContextState* const context = current();
  stream->push("cuStreamWaitValue32", [word, value, context] {
    while (static_cast<std::int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      if (context->failure != kSuccess) break;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return kSuccess;
  });
  return kSuccess;
}

Result cuLaunchHostFunc(Stream handle, HostFunction function, void* argument) {
  FAKE_BEGIN_IN_CONTEXT(cuLaunchHostFunc);
  FAKE_FIND_STREAM(handle);
  stream->push("cuLaunchHostFunc", [function, argument] {
    function(argument);
    return kSuccess;
  });
  return kSuccess;
}

Result cuStreamGetCtx(Stream handle, Context* context) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamGetCtx);
  FAKE_FIND_STREAM_BY(stream, handle);
  *context = to_handle(&stream->context());
  return kSuccess;
}

// What is captured is run at once: that it is a capture is all that the tests look at.
Result cuStreamBeginCapture(Stream handle, int) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamBeginCapture);
  FAKE_FIND_STREAM_BY(stream, handle);
  stream->capturing = true;
  return kSuccess;
}

Result cuStreamIsCapturing(Stream handle, int* status) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamIsCapturing);
  FAKE_FIND_STREAM_BY(stream, handle);
  *status = stream->capturing ? 1 : 0;
  return kSuccess;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_BEGIN(cuThreadExchangeStreamCaptureMode);
  thread_local int current_mode = 0;
  std::swap(*mode, current_mode);
  return kSuccess;
}

Result cuStreamEndCapture(Stream handle, void** graph) {
  FAKE_BEGIN_IN_CONTEXT(cuStreamEndCapture);
  FAKE_FIND_STREAM_BY(stream, handle);
  *graph = nullptr;
  return stream->capturing.exchange(false) ? kSuccess : kInvalidValue;
}

Result cuEventCreate(Event* handle, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuEventCreate);
  if (flags > 7) return kInvalidValue;
  auto event = std::make_shared<EventState>();
  event->context = current();
  event->flags = flags;
  const std::lock_guard lock(registry().mutex);
  *handle = static_cast<Event>(registry().events.add(std::move(event)));
  return kSuccess;
}

Result cuEventDestroy(Event handle) {
  FAKE_BEGIN(cuEventDestroy);
  const std::lock_guard lock(registry().mutex);
  return registry().events.live.erase(handle) == 1 ? kSuccess : kInvalidHandle;
}

Result cuEventRecord(Event event_handle, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuEventRecord);
  FAKE_FIND_STREAM(handle);
  FAKE_FIND_EVENT(event_handle);
  if (event->context != current() || &stream->context() != current()) return kInvalidHandle;
  auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(registry().mutex);
    event->mark = mark;
  }
  stream->push(
      "cuEventRecord",
      [mark] {
        mark->finish();
        return kSuccess;
      },
      true);
  return kSuccess;
}

Result cuEventQuery(Event handle) {
  FAKE_BEGIN_IN_CONTEXT(cuEventQuery);
  FAKE_FIND_EVENT(handle);
  const std::shared_ptr<Mark> mark = mark_of(*event);
  return mark == nullptr || mark->is_done() ? current()->failure.load() : kNotReady;
}

Result cuEventSynchronize(Event handle) {
  FAKE_BEGIN_IN_CONTEXT(cuEventSynchronize);
  FAKE_FIND_EVENT(handle);
  if (const std::shared_ptr<Mark> mark = mark_of(*event); mark != nullptr) mark->wait();
  return current()->failure;
}

Result cuEventElapsedTime(float* milliseconds, Event begin_handle, Event end_handle) {
  FAKE_BEGIN_IN_CONTEXT(cuEventElapsedTime);
  const std::shared_ptr<EventState> first = find_event(begin_handle);
  const std::shared_ptr<EventState> last = find_event(end_handle);
  if (first == nullptr || last == nullptr) return kInvalidHandle;
  if (((first->flags | last->flags) & penstock::cuda::kEventDisableTiming) != 0) return kInvalidHandle;
  const std::shared_ptr<Mark> from = mark_of(*first);
  const std::shared_ptr<Mark> to = mark_of(*last);
  if (from == nullptr || to == nullptr) return kInvalidHandle;
  if (!from->is_done() || !to->is_done()) return kNotReady;
  *milliseconds = static_cast<float>(static_cast<double>(to->nanoseconds - from->nanoseconds) / 1e6);
  return kSuccess;
}

Result cuMemAlloc(Address* address, std::size_t bytes) {
  FAKE_BEGIN_IN_CONTEXT(cuMemAlloc);
  return memory().allocate_device(current()->device, bytes, address);
}

Result cuMemFree(Address address) {
  FAKE_BEGIN_IN_CONTEXT(cuMemFree);
  current()->wait_idle();
  return memory().free_device(address);
}

Result cuMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  FAKE_BEGIN_IN_CONTEXT(cuMemGetInfo);
  *total = script().memory;
  const std::size_t used = memory().device_bytes(current()->device);
  *free_bytes = used < *total ? *total - used : 0;
  return kSuccess;
}

Result cuMemGetAddressRange(Address* first, std::size_t* bytes, Address address) {
  FAKE_BEGIN_IN_CONTEXT(cuMemGetAddressRange);
  return memory().range_of(address, first, bytes);
}

Result cuMemGetAllocationGranularity(std::size_t* bytes, const PageProperties* pages, int) {
  FAKE_BEGIN_IN_CONTEXT(cuMemGetAllocationGranularity);
  *bytes = std::size_t{2} << 20;
  return check_device(pages->location.device);
}

Result cuMemCreate(Pages* pages, std::size_t bytes, const PageProperties* wanted, PageFlags flags) {
  FAKE_BEGIN_IN_CONTEXT(cuMemCreate);
  if (wanted->type != 1 || wanted->location.type != 1 || flags != 0) return kInvalidValue;
  return memory().create_pages(wanted->location.device, bytes, pages);
}

Result cuMemRelease(Pages pages) {
  FAKE_BEGIN_IN_CONTEXT(cuMemRelease);
  return memory().release_pages(pages);
}

Result cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t, Address, PageFlags) {
  FAKE_BEGIN_IN_CONTEXT(cuMemAddressReserve);
  return memory().reserve(bytes, address);
}

Result cuMemAddressFree(Address address, std::size_t bytes) {
  FAKE_BEGIN_IN_CONTEXT(cuMemAddressFree);
  return memory().unreserve(address, bytes);
}

Result cuMemMap(Address address, std::size_t bytes, std::size_t offset, Pages pages, PageFlags flags) {
  FAKE_BEGIN_IN_CONTEXT(cuMemMap);
  return offset != 0 || flags != 0 ? kInvalidValue : memory().map_pages(address, bytes, pages);
}

// Unlike cuMemFree, it does not wait for work.
Result cuMemUnmap(Address address, std::size_t bytes) {
  FAKE_BEGIN_IN_CONTEXT(cuMemUnmap);
  return memory().unmap_pages(address, bytes);
}

Result cuMemSetAccess(Address address, std::size_t bytes, const PageAccess* access, std::size_t count) {
  FAKE_BEGIN_IN_CONTEXT(cuMemSetAccess);
  if (count != 1 || access->flags != 3 || access->location.type != 1) return kInvalidValue;
  return memory().open_pages(address, bytes, access->location.device);
}

Result cuIpcGetMemHandle(IpcMemoryHandle* handle, Address address) {
  FAKE_BEGIN_IN_CONTEXT(cuIpcGetMemHandle);
  current()->wait_idle();
  return memory().name_device(address, handle);
}

Result cuIpcOpenMemHandle(Address* address, IpcMemoryHandle handle, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuIpcOpenMemHandle);
  if (flags != penstock::cuda::kIpcLazyEnablePeerAccess) return kInvalidValue;
  return memory().open_named(current()->device, handle, address);
}

Result cuIpcCloseMemHandle(Address address) {
  FAKE_BEGIN_IN_CONTEXT(cuIpcCloseMemHandle);
  return memory().close_named(address);
}

Result cuMemHostRegister(void* data, std::size_t bytes, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuMemHostRegister);
  if ((flags & ~0xbu) != 0) return kInvalidValue;
  return memory().add_registered(current()->device, data, bytes, flags);
}

Result cuMemHostUnregister(void* data) {
  FAKE_BEGIN_IN_CONTEXT(cuMemHostUnregister);
  return memory().remove_registered(data);
}

Result cuMemHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  FAKE_BEGIN_IN_CONTEXT(cuMemHostAlloc);
  if (flags > 7) return kInvalidValue;
  return memory().allocate_host(current()->device, bytes, flags, data);
}

Result cuMemFreeHost(void* data) {
  FAKE_BEGIN_IN_CONTEXT(cuMemFreeHost);
  current()->wait_idle();
  return memory().free_host(data);
}

Result cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** answers, Address address) {
  FAKE_BEGIN_IN_CONTEXT(cuPointerGetAttributes);
  const Found found = memory().find_for(current()->device, address);
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case PointerAttribute::context: {
        const Context of =
            found.kind != Kind::none && found.ordinal == current()->device ? to_handle(current()) : nullptr;
        std::memcpy(answers[i], &of, sizeof(of));
        break;
      }
      case PointerAttribute::memory_type: {
        const bool on_device = found.kind == Kind::device && !script().managed;
        const unsigned type = found.kind == Kind::none ? 0 : on_device ? 2 : 1;
        std::memcpy(answers[i], &type, sizeof(type));
        break;
      }
      case PointerAttribute::device_pointer: {
        std::memcpy(answers[i], &found.device, sizeof(found.device));
        break;
      }
      case PointerAttribute::device_ordinal: {
        std::memcpy(answers[i], &found.ordinal, sizeof(found.ordinal));
        break;
      }
      case PointerAttribute::is_managed: {
        const unsigned managed = found.kind == Kind::device && script().managed ? 1 : 0;
        std::memcpy(answers[i], &managed, sizeof(managed));
        break;
      }
      case PointerAttribute::is_legacy_cuda_ipc_capable: {
        const unsigned capable =
            found.kind == Kind::device && !script().managed && !found.closed && script().ipc ? 1 : 0;
        std::memcpy(answers[i], &capable, sizeof(capable));
        break;
      }
      default:
        return kInvalidValue;
    }
  }
  return kSuccess;
}

Address address_of(const void* data) { return reinterpret_cast<Address>(data); }

// The address at which copies read, or write, for an address of the host or of the devices; null if they
// fail.
const void* copy_reads(Address address, std::size_t bytes) { return memory().find(address, bytes).host; }
void* copy_writes(Address address, std::size_t bytes) {
  const Found found = memory().find(address, bytes);
  return found.kind == Kind::read_only ? nullptr : found.host;
}

bool is_device_memory(Address address, std::size_t bytes) {
  const Found found = memory().find(address, bytes);
  return found.kind == Kind::device && found.host != nullptr;
}

// Copies when the stream comes to it, if both ends are still the same memory.
std::function<Result()> copy_work(Address to, Address from, std::size_t bytes) {
  return [=] {
    void* const target = copy_writes(to, bytes);
    const void* const source = copy_reads(from, bytes);
    if (target == nullptr || source == nullptr) return kIllegalAddress;
    std::memcpy(target, source, bytes);
    return kSuccess;
  };
}

/// Enqueues a copy for `function`. Pageable memory is read at once, and written before the call returns.
Result to_device(const char* function, Queue& stream, Address to, const void* from, std::size_t bytes) {
  if (!is_device_memory(to, bytes)) return kInvalidValue;
  const Found source = memory().find(address_of(from));
  if (source.kind == Kind::device || (source.host != nullptr && source.host != from)) return kInvalidValue;
  if (source.host != nullptr) {
    if (copy_reads(address_of(from), bytes) == nullptr) return kInvalidValue;
    stream.push(function, copy_work(to, address_of(from), bytes));
    return kSuccess;
  }
  const auto* first = static_cast<const char*>(from);
  auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
  stream.push(function, [=] {
    void* const target = copy_writes(to, bytes);
    if (target == nullptr) return kIllegalAddress;
    std::memcpy(target, staged->data(), bytes);
    return kSuccess;
  });
  return kSuccess;
}

Result to_host(const char* function, Queue& stream, void* to, Address from, std::size_t bytes) {
  if (!is_device_memory(from, bytes)) return kInvalidValue;
  const Found target = memory().find(address_of(to));
  if (target.kind == Kind::device || (target.host != nullptr && target.host != to)) return kInvalidValue;
  if (target.host != nullptr) {
    if (copy_writes(address_of(to), bytes) == nullptr) return kInvalidValue;
    stream.push(function, copy_work(address_of(to), from, bytes));
    return kSuccess;
  }
  stream.push(function, [=] {
    const void* const source = copy_reads(from, bytes);
    if (source == nullptr) return kIllegalAddress;
    std::memcpy(to, source, bytes);
    return kSuccess;
  });
  stream.wait();
  return current()->failure;
}

Result cuMemcpyHtoDAsync(Address to, const void* from, std::size_t bytes, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync);
  FAKE_FIND_STREAM(handle);
  return to_device("cuMemcpyHtoDAsync", *stream, to, from, bytes);
}

Result cuMemcpyDtoHAsync(void* to, Address from, std::size_t bytes, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync);
  FAKE_FIND_STREAM(handle);
  return to_host("cuMemcpyDtoHAsync", *stream, to, from, bytes);
}

Result cuMemcpyDtoDAsync(Address to, Address from, std::size_t bytes, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpyDtoDAsync);
  FAKE_FIND_STREAM(handle);
  if (!is_device_memory(to, bytes) || !is_device_memory(from, bytes)) return kInvalidValue;
  stream->push("cuMemcpyDtoDAsync", copy_work(to, from, bytes));
  return kSuccess;
}

bool is_pageable(Address address) { return memory().find(address).kind == Kind::none; }

bool can_copy(Address to, Address from, std::size_t bytes) {
  if (is_pageable(to)) return is_device_memory(from, bytes);
  return copy_writes(to, bytes) != nullptr &&
         (is_pageable(from) ? is_device_memory(to, bytes) : copy_reads(from, bytes) != nullptr);
}

/// The same by what the addresses tell.
Result any_way(const char* function, Queue& stream, Address to, Address from, std::size_t bytes) {
  if (!can_copy(to, from, bytes)) return kInvalidValue;
  if (is_pageable(to)) return to_host(function, stream, reinterpret_cast<void*>(to), from, bytes);
  if (is_pageable(from)) return to_device(function, stream, to, reinterpret_cast<const void*>(from), bytes);
  stream.push(function, copy_work(to, from, bytes));
  return kSuccess;
}

/// Enqueues a copy that reads pageable memory when the stream comes to it.
Result in_stream_order(const char* function, Queue& stream, Address to, Address from, std::size_t bytes) {
  if (!can_copy(to, from, bytes) || !is_pageable(from)) return any_way(function, stream, to, from, bytes);
  stream.push(function, [=] {
    void* const target = copy_writes(to, bytes);
    if (target == nullptr) return kIllegalAddress;
    std::memcpy(target, reinterpret_cast<const void*>(from), bytes);
    return kSuccess;
  });
  return kSuccess;
}

Result cuMemcpyBatchAsync(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                          BatchedCopyAttributes* attributes, std::size_t* first_of, std::size_t kinds,
                          std::size_t* failed, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpyBatchAsync);
  if (to == nullptr || from == nullptr || bytes == nullptr || handle == nullptr ||
      handle == static_cast<Stream>(kLegacyStream) || count == 0 || kinds != 1 || first_of[0] != 0 ||
      failed == nullptr || attributes->source_access_order < 1 || attributes->source_access_order > 3) {
    return kInvalidValue;
  }
  FAKE_FIND_STREAM(handle);
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes[i] != 0 && can_copy(to[i], from[i], bytes[i])) continue;
    *failed = i;
    return kInvalidValue;
  }
  const bool ordered = attributes->source_access_order == penstock::cuda::kSourceAccessOrderStream;
  for (std::size_t i = 0; i < count; ++i) {
    const Result result =
        (ordered ? in_stream_order : any_way)("cuMemcpyBatchAsync", *stream, to[i], from[i], bytes[i]);
    if (result == kSuccess) continue;
    *failed = i;
    return result;
  }
  return kSuccess;
}

// The form since version 13.0.
Result cuMemcpyBatchAsync_v2(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                             BatchedCopyAttributes* attributes, std::size_t* first_of, std::size_t kinds,
                             Stream handle) {
  std::size_t failed = 0;
  return cuMemcpyBatchAsync(to, from, bytes, count, attributes, first_of, kinds, &failed, handle);
}

Result copy_box(const char* function, const BoxCopy& box, Stream handle) {
  FAKE_FIND_STREAM(handle);
  for (const BoxSide& side : {box.from, box.to}) {
    if (side.type == MemoryType::array || side.level != 0 || side.reserved != nullptr ||
        side.pitch < side.x + box.width ||
        (side.height != 0 ? side.height < side.y + box.height : box.depth > 1)) {
      return kInvalidValue;
    }
  }
  const auto row_of = [](const BoxSide& side, std::size_t row, std::size_t layer) {
    const Address base = side.type == MemoryType::host ? side.host : side.device;
    return base + ((side.z + layer) * side.height + side.y + row) * side.pitch + side.x;
  };
  for (std::size_t layer = 0; layer < box.depth; ++layer) {
    for (std::size_t row = 0; row < box.height; ++row) {
      const Result result =
          any_way(function, *stream, row_of(box.to, row, layer), row_of(box.from, row, layer), box.width);
      if (result != kSuccess) return result;
    }
  }
  return kSuccess;
}

Result cuMemcpy3DAsync(const BoxCopy* box, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpy3DAsync);
  return box == nullptr ? kInvalidValue : copy_box("cuMemcpy3DAsync", *box, handle);
}

Result cuMemcpy2DAsync(const PlaneCopy* plane, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemcpy2DAsync);
  if (plane == nullptr) return kInvalidValue;
  const auto side = [](const penstock::run::PlaneSide& of) {
    return BoxSide{of.x, of.y, 0, 0, of.type, of.host, of.device, of.array, nullptr, of.pitch, 0};
  };
  return copy_box("cuMemcpy2DAsync", {side(plane->from), side(plane->to), plane->width, plane->height, 1},
                  handle);
}

// Copies whose ends the addresses tell.
Result cuMemcpyAsync(Address to, Address from, std::size_t bytes, Stream handle) {
  const bool to_device = is_device_memory(to, bytes);
  if (to_device && is_device_memory(from, bytes)) return cuMemcpyDtoDAsync(to, from, bytes, handle);
  if (to_device) return cuMemcpyHtoDAsync(to, reinterpret_cast<const void*>(from), bytes, handle);
  return cuMemcpyDtoHAsync(reinterpret_cast<void*>(to), from, bytes, handle);
}

/// Makes a copy in the default stream, and waits for it.
template <typename To, typename From>
Result and_wait(Result (*copy)(To, From, std::size_t, Stream), To to, From from, std::size_t bytes,
                Stream handle) {
  if (const Result result = copy(to, from, bytes, handle)) return result;
  return cuStreamSynchronize(handle);
}
Result cuMemcpyHtoD(Address to, const void* from, std::size_t bytes) {
  return and_wait(cuMemcpyHtoDAsync, to, from, bytes, nullptr);
}
Result cuMemcpyDtoH(void* to, Address from, std::size_t bytes) {
  return and_wait(cuMemcpyDtoHAsync, to, from, bytes, nullptr);
}
Result cuMemcpy(Address to, Address from, std::size_t bytes) {
  return and_wait(cuMemcpyAsync, to, from, bytes, nullptr);
}

template <typename Copy>
Result and_wait(Result (*copy)(const Copy*, Stream), const Copy* box, Stream handle) {
  if (const Result result = copy(box, handle)) return result;
  return cuStreamSynchronize(handle);
}
Result cuMemcpy2D(const PlaneCopy* plane) { return and_wait(cuMemcpy2DAsync, plane, nullptr); }
Result cuMemcpy2DUnaligned(const PlaneCopy* plane) { return and_wait(cuMemcpy2DAsync, plane, nullptr); }
Result cuMemcpy3D(const BoxCopy* box) { return and_wait(cuMemcpy3DAsync, box, nullptr); }

// The forms for programs whose default stream is that of the thread.
const auto kThreadStream = static_cast<Stream>(kPerThreadStream);
Stream per_thread(Stream handle) { return handle == nullptr ? kThreadStream : handle; }
Result cuMemcpyHtoD_ptds(Address to, const void* from, std::size_t bytes) {
  return and_wait(cuMemcpyHtoDAsync, to, from, bytes, kThreadStream);
}
Result cuMemcpyDtoH_ptds(void* to, Address from, std::size_t bytes) {
  return and_wait(cuMemcpyDtoHAsync, to, from, bytes, kThreadStream);
}
Result cuMemcpy_ptds(Address to, Address from, std::size_t bytes) {
  return and_wait(cuMemcpyAsync, to, from, bytes, kThreadStream);
}
Result cuMemcpyHtoDAsync_ptsz(Address to, const void* from, std::size_t bytes, Stream handle) {
  return cuMemcpyHtoDAsync(to, from, bytes, per_thread(handle));
}
Result cuMemcpyDtoHAsync_ptsz(void* to, Address from, std::size_t bytes, Stream handle) {
  return cuMemcpyDtoHAsync(to, from, bytes, per_thread(handle));
}
Result cuMemcpyAsync_ptsz(Address to, Address from, std::size_t bytes, Stream handle) {
  return cuMemcpyAsync(to, from, bytes, per_thread(handle));
}
Result cuMemcpy2D_ptds(const PlaneCopy* plane) { return and_wait(cuMemcpy2DAsync, plane, kThreadStream); }
Result cuMemcpy2DUnaligned_ptds(const PlaneCopy* plane) { return cuMemcpy2D_ptds(plane); }
Result cuMemcpy3D_ptds(const BoxCopy* box) { return and_wait(cuMemcpy3DAsync, box, kThreadStream); }
Result cuMemcpy2DAsync_ptsz(const PlaneCopy* plane, Stream handle) {
  return cuMemcpy2DAsync(plane, per_thread(handle));
}
Result cuMemcpy3DAsync_ptsz(const BoxCopy* box, Stream handle) {
  return cuMemcpy3DAsync(box, per_thread(handle));
}
Result cuMemcpyBatchAsync_ptsz(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                               BatchedCopyAttributes* attributes, std::size_t* first_of, std::size_t kinds,
                               std::size_t* failed, Stream handle) {
  return cuMemcpyBatchAsync(to, from, bytes, count, attributes, first_of, kinds, failed, per_thread(handle));
}
Result cuMemcpyBatchAsync_v2_ptsz(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                                  BatchedCopyAttributes* attributes, std::size_t* first_of, std::size_t kinds,
                                  Stream handle) {
  return cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, first_of, kinds, per_thread(handle));
}

Result cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, Stream handle) {
  FAKE_BEGIN_IN_CONTEXT(cuMemsetD8Async);
  FAKE_FIND_STREAM(handle);
  if (memory().kernel_writes(to, bytes) == nullptr) return kInvalidValue;
  stream->push("cuMemsetD8Async", [=] {
    void* const target = memory().kernel_writes(to, bytes);
    if (target == nullptr) return kIllegalAddress;
    std::memset(target, value, bytes);
    return kSuccess;
  });
  return kSuccess;
}

Result cuModuleLoadDataEx(Module* handle, const void* image, unsigned options, int*, void**) {
  FAKE_BEGIN_IN_CONTEXT(cuModuleLoadDataEx);
  auto module = std::make_shared<ModuleState>();
  module->text = static_cast<const char*>(image);
  if (options != 0 || module->text.find(".version 6.4\n") == std::string::npos ||
      module->text.find(".target sm_75\n") == std::string::npos) {
    return kInvalidPtx;
  }
  const std::lock_guard lock(registry().mutex);
  *handle = static_cast<Module>(registry().modules.add(std::move(module)));
  return kSuccess;
}

Result cuModuleUnload(Module handle) {
  FAKE_BEGIN(cuModuleUnload);
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().functions.live, [&](const auto& entry) { return entry.second->module == handle; });
  return registry().modules.live.erase(handle) == 1 ? kSuccess : kInvalidHandle;
}

Result cuModuleGetFunction(Function* handle, Module module_handle, const char* name) {
  FAKE_BEGIN_IN_CONTEXT(cuModuleGetFunction);
  const std::lock_guard lock(registry().mutex);
  const auto module = registry().modules.find(module_handle);
  if (module == nullptr) return kInvalidHandle;
  if (module->text.find(".visible .entry " + std::string(name) + "(") == std::string::npos) return kNotFound;
  auto function = std::make_shared<FunctionState>(name, module_handle);
  *handle = static_cast<Function>(registry().functions.add(std::move(function)));
  return kSuccess;
}

Result cuFuncLoad(Function handle) {
  FAKE_BEGIN_IN_CONTEXT(cuFuncLoad);
  const std::lock_guard lock(registry().mutex);
  return registry().functions.find(handle) == nullptr ? kInvalidHandle : kSuccess;
}

// Of a grid, along x.
constexpr unsigned kMostBlocks = 0x7fffffff;

Result cuLaunchKernel(Function handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned, Stream stream_handle, void** parameters,
                      void** extra) {
  FAKE_BEGIN_IN_CONTEXT(cuLaunchKernel);
  FAKE_FIND_STREAM(stream_handle);
  if (&stream->context() != current()) return kInvalidContext;
  std::shared_ptr<FunctionState> function;
  {
    const std::lock_guard lock(registry().mutex);
    function = registry().functions.find(handle);
  }
  if (function == nullptr) return kInvalidHandle;
  const std::size_t bytes = kernel_argument_bytes(function->name);
  if (bytes == 0 || grid_x == 0 || grid_x > kMostBlocks || grid_y != 1 || grid_z != 1 ||
      block_x != kernel_threads(function->name) || block_y != 1 || block_z != 1 || parameters == nullptr ||
      extra != nullptr) {
    return kInvalidValue;
  }
  script().last_grid = grid_x;
  const auto* first = static_cast<const char*>(parameters[0]);
  auto arguments = std::make_shared<std::vector<char>>(first, first + bytes);
  stream->push("cuLaunchKernel", [function, arguments, grid_x] {
    return run_kernel(function->name, arguments->data(), grid_x);
  });
  return kSuccess;
}

struct ErrorText {
  Result code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is enabled already"},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all is registered already"},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer is not registered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

Result cuGetErrorName(Result code, const char** text) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      *text = error.name;
      return kSuccess;
    }
  }
  *text = nullptr;
  return kInvalidValue;
}

Result cuGetErrorString(Result code, const char** text) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      *text = error.text;
      return kSuccess;
    }
  }
  *text = nullptr;
  return kInvalidValue;
}

struct Entry {
  std::string_view name;
  int version;
  void* function;
};

/// Functions that the library does not call, but other users of the driver do.
#define FAKE_OTHER_ENTRIES(X)                                                            \
  X(launch_host_func, cuLaunchHostFunc, 10000, (Stream, HostFunction, void*))            \
  X(ctx_get_device, cuCtxGetDevice, 2000, (Ordinal*))                                    \
  X(primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000, (Ordinal, unsigned*, int*)) \
  X(primary_ctx_reset, cuDevicePrimaryCtxReset, 11000, (Ordinal))                        \
  X(stream_get_ctx, cuStreamGetCtx, 9020, (Stream, Context*))                            \
  X(stream_begin_capture, cuStreamBeginCapture, 10010, (Stream, int))                    \
  X(stream_is_capturing, cuStreamIsCapturing, 10000, (Stream, int*))                     \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int*))             \
  X(stream_end_capture, cuStreamEndCapture, 10000, (Stream, void**))                     \
  X(memcpy_h2d, cuMemcpyHtoD, 3020, (Address, const void*, std::size_t))                 \
  X(memcpy_d2h, cuMemcpyDtoH, 3020, (void*, Address, std::size_t))                       \
  X(memcpy, cuMemcpy, 4000, (Address, Address, std::size_t))                             \
  X(memcpy_async, cuMemcpyAsync, 4000, (Address, Address, std::size_t, Stream))          \
  X(memcpy_2d, cuMemcpy2D, 3020, (const PlaneCopy*))                                     \
  X(memcpy_2d_unaligned, cuMemcpy2DUnaligned, 3020, (const PlaneCopy*))                  \
  X(memcpy_3d, cuMemcpy3D, 3020, (const BoxCopy*))                                       \
  X(memcpy_2d_async, cuMemcpy2DAsync, 3020, (const PlaneCopy*, Stream))                  \
  X(memcpy_3d_async, cuMemcpy3DAsync, 3020, (const BoxCopy*, Stream))

/// Those that CUDA gives in place of others of the same name to programs with a default stream for each
/// thread.
#define FAKE_PER_THREAD_ENTRIES(X) \
  X(cuMemcpyHtoD, _ptds)           \
  X(cuMemcpyDtoH, _ptds)           \
  X(cuMemcpy, _ptds)               \
  X(cuMemcpyHtoDAsync, _ptsz)      \
  X(cuMemcpyDtoHAsync, _ptsz)      \
  X(cuMemcpyAsync, _ptsz)          \
  X(cuMemcpy2D, _ptds)             \
  X(cuMemcpy2DUnaligned, _ptds)    \
  X(cuMemcpy3D, _ptds)             \
  X(cuMemcpy2DAsync, _ptsz)        \
  X(cuMemcpy3DAsync, _ptsz)        \
  X(cuMemcpyBatchAsync, _ptsz)

const std::vector<Entry>& entries() {
#define FAKE_ENTRY(member, name, version, parameters)                      \
  {#name, version, [] {                                                    \
     Result(*function) parameters = name; /* the types must be the same */ \
     return reinterpret_cast<void*>(function);                             \
   }()},
  static const std::vector<Entry> table{PENSTOCK_CUDA_ENTRIES(FAKE_ENTRY) PENSTOCK_CUDA_NEWER_ENTRIES(
      FAKE_ENTRY) FAKE_OTHER_ENTRIES(FAKE_ENTRY)};
#undef FAKE_ENTRY
  return table;
}

void* per_thread_entry(std::string_view name) {
#define FAKE_ENTRY(shared, ending) \
  if (name == #shared) return reinterpret_cast<void*>(&shared##ending);
  FAKE_PER_THREAD_ENTRIES(FAKE_ENTRY)
#undef FAKE_ENTRY
  return nullptr;
}

}  // namespace

}  // namespace fake_cuda

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuDriverGetVersion(int* version) {
  *version = fake_cuda::script().version;
  return 0;
}

// Those that CUDA's runtime does not ask cuGetProcAddress for, but programs ask dlsym.
EXPORT int cuMemcpyHtoD_v2(fake_cuda::Address to, const void* from, std::size_t bytes) {
  return fake_cuda::cuMemcpyHtoD(to, from, bytes);
}
EXPORT int cuMemcpy2D_v2(const penstock::run::PlaneCopy* plane) { return fake_cuda::cuMemcpy2D(plane); }
EXPORT int cuMemcpyDtoHAsync_v2(void* to, fake_cuda::Address from, std::size_t bytes,
                                fake_cuda::Stream stream) {
  return fake_cuda::cuMemcpyDtoHAsync(to, from, bytes, stream);
}

EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                               int* status) {
  *function = nullptr;
  if (flags > 2) return fake_cuda::kInvalidValue;
  if (std::string_view(symbol) == "cuGetProcAddress") {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
    return fake_cuda::kSuccess;
  }
  if (std::string_view(symbol) == "cuMemcpyBatchAsync" &&
      std::min(version, fake_cuda::script().version.load()) >= 13000) {
    *function = reinterpret_cast<void*>(flags == 2 ? &fake_cuda::cuMemcpyBatchAsync_v2_ptsz
                                                   : &fake_cuda::cuMemcpyBatchAsync_v2);
    return fake_cuda::kSuccess;
  }
  if (flags == 2) {
    if (void* const own = fake_cuda::per_thread_entry(symbol)) {
      *function = own;
      return fake_cuda::kSuccess;
    }
  }
  for (const auto& entry : fake_cuda::entries()) {
    if (entry.name != symbol) continue;
    const bool sufficient = version >= entry.version;
    if (sufficient) *function = entry.function;
    if (status != nullptr) *status = sufficient ? 0 : 2;
    return sufficient ? fake_cuda::kSuccess : fake_cuda::kNotFound;
  }
  if (status != nullptr) *status = 1;
  return fake_cuda::kNotFound;
}
