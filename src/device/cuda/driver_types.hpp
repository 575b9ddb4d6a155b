#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the CUDA driver's binary interface that penstock uses. It is declared here so that building
/// needs no vendor header. If cuda.h is found, a test compares the two.
namespace penstock::cuda {

using Result = int;
using Ordinal = int;
using Address = unsigned long long;

struct ContextTag;
struct StreamTag;
struct EventTag;
struct ModuleTag;
struct FunctionTag;
using Context = ContextTag*;
using Stream = StreamTag*;
using Event = EventTag*;
using Module = ModuleTag*;
using Function = FunctionTag*;

struct Uuid {
  char bytes[16];
};

/// Names an allocation to other processes: CUipcMemHandle.
struct IpcMemoryHandle {
  char bytes[64];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kMapFailed = 205;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kJitCompilerNotFound = 221;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchTimeout = 702;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kAssert = 710;
inline constexpr Result kTooManyPeers = 711;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kIllegalInstruction = 715;
inline constexpr Result kMisalignedAddress = 716;
inline constexpr Result kInvalidAddressSpace = 717;
inline constexpr Result kInvalidPc = 718;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemDriverMismatch = 803;

enum class DeviceAttribute : int {
  multiprocessors = 16,
  compute_major = 75,
  compute_minor = 76,
  read_only_host_register = 113,
};

enum class PointerAttribute : int {
  context = 1,
  memory_type = 2,
  device_pointer = 3,
  is_managed = 8,
  device_ordinal = 9,
  is_legacy_cuda_ipc_capable = 10,
};

/// Attributes of a batch of copies: CUmemcpyAttributes.
struct BatchedCopyAttributes {
  int source_access_order = 0;
  int source_location[2] = {};
  int destination_location[2] = {};
  unsigned flags = 0;
};

/// Where memory is: CUmemLocation, here always of a device.
struct MemoryLocation {
  int type = 1;
  int device = 0;
};

/// What pages are asked for: CUmemAllocationProp, here always pinned pages of a device.
struct PageProperties {
  int type = 1;
  int handle_types = 0;
  MemoryLocation location;
  void* unused = nullptr;
  unsigned char flags[8] = {};
};

/// Who may use mapped pages: CUmemAccessDesc, here always to read and write.
struct PageAccess {
  MemoryLocation location;
  int flags = 3;
};

using Pages = unsigned long long;  ///< CUmemGenericAllocationHandle
using PageFlags = unsigned long long;
inline constexpr int kRecommendedGranularity = 1;

inline constexpr int kSourceAccessOrderStream = 1;
inline constexpr unsigned kPreferOverlapWithCompute = 1;

inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kStreamWaitValueGeq = 0;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocDeviceMap = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kHostRegisterReadOnly = 8;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;

}  // namespace penstock::cuda

/// X(member, name in the driver, version whose binary interface is meant, parameters)
#define PENSTOCK_CUDA_ENTRIES(X)                                                                          \
  X(init, cuInit, 2000, (unsigned))                                                                       \
  X(device_get, cuDeviceGet, 2000, (Ordinal*, int))                                                       \
  X(device_get_count, cuDeviceGetCount, 2000, (int*))                                                     \
  X(device_get_name, cuDeviceGetName, 2000, (char*, int, Ordinal))                                        \
  X(device_get_uuid, cuDeviceGetUuid, 11040, (Uuid*, Ordinal))                                            \
  X(device_get_attribute, cuDeviceGetAttribute, 2000, (int*, DeviceAttribute, Ordinal))                   \
  X(device_total_mem, cuDeviceTotalMem, 3020, (std::size_t*, Ordinal))                                    \
  X(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010, (char*, int, Ordinal))                              \
  X(device_can_access_peer, cuDeviceCanAccessPeer, 4000, (int*, Ordinal, Ordinal))                        \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, (Context*, Ordinal))                              \
  X(primary_ctx_release, cuDevicePrimaryCtxRelease, 11000, (Ordinal))                                     \
  X(ctx_push_current, cuCtxPushCurrent, 4000, (Context))                                                  \
  X(ctx_pop_current, cuCtxPopCurrent, 4000, (Context*))                                                   \
  X(ctx_get_current, cuCtxGetCurrent, 4000, (Context*))                                                   \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, 4000, (Context, unsigned))                             \
  X(ctx_synchronize, cuCtxSynchronize, 2000, ())                                                          \
  X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050, (int*, int*))                       \
  X(stream_create, cuStreamCreateWithPriority, 5050, (Stream*, unsigned, int))                            \
  X(stream_destroy, cuStreamDestroy, 4000, (Stream))                                                      \
  X(stream_query, cuStreamQuery, 2000, (Stream))                                                          \
  X(stream_synchronize, cuStreamSynchronize, 2000, (Stream))                                              \
  X(stream_wait_event, cuStreamWaitEvent, 3020, (Stream, Event, unsigned))                                \
  X(stream_wait_value32, cuStreamWaitValue32, 11070, (Stream, Address, std::uint32_t, unsigned))          \
  X(event_create, cuEventCreate, 2000, (Event*, unsigned))                                                \
  X(event_destroy, cuEventDestroy, 4000, (Event))                                                         \
  X(event_record, cuEventRecord, 2000, (Event, Stream))                                                   \
  X(event_query, cuEventQuery, 2000, (Event))                                                             \
  X(event_synchronize, cuEventSynchronize, 2000, (Event))                                                 \
  X(event_elapsed_time, cuEventElapsedTime, 2000, (float*, Event, Event))                                 \
  X(mem_alloc, cuMemAlloc, 3020, (Address*, std::size_t))                                                 \
  X(mem_free, cuMemFree, 3020, (Address))                                                                 \
  X(mem_get_info, cuMemGetInfo, 3020, (std::size_t*, std::size_t*))                                       \
  X(mem_get_address_range, cuMemGetAddressRange, 3020, (Address*, std::size_t*, Address))                 \
  X(page_granularity, cuMemGetAllocationGranularity, 10020, (std::size_t*, const PageProperties*, int))   \
  X(mem_create, cuMemCreate, 10020, (Pages*, std::size_t, const PageProperties*, PageFlags))              \
  X(mem_release, cuMemRelease, 10020, (Pages))                                                            \
  X(mem_address_reserve, cuMemAddressReserve, 10020,                                                      \
    (Address*, std::size_t, std::size_t, Address, PageFlags))                                             \
  X(mem_address_free, cuMemAddressFree, 10020, (Address, std::size_t))                                    \
  X(mem_map, cuMemMap, 10020, (Address, std::size_t, std::size_t, Pages, PageFlags))                      \
  X(mem_unmap, cuMemUnmap, 10020, (Address, std::size_t))                                                 \
  X(mem_set_access, cuMemSetAccess, 10020, (Address, std::size_t, const PageAccess*, std::size_t))        \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, 4010, (IpcMemoryHandle*, Address))                             \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle, 11000, (Address*, IpcMemoryHandle, unsigned))                \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, 4010, (Address))                                           \
  X(mem_host_register, cuMemHostRegister, 6050, (void*, std::size_t, unsigned))                           \
  X(mem_host_unregister, cuMemHostUnregister, 4000, (void*))                                              \
  X(mem_host_alloc, cuMemHostAlloc, 2020, (void**, std::size_t, unsigned))                                \
  X(mem_free_host, cuMemFreeHost, 2000, (void*))                                                          \
  X(pointer_get_attributes, cuPointerGetAttributes, 7000, (unsigned, PointerAttribute*, void**, Address)) \
  X(memcpy_h2d_async, cuMemcpyHtoDAsync, 3020, (Address, const void*, std::size_t, Stream))               \
  X(memcpy_d2h_async, cuMemcpyDtoHAsync, 3020, (void*, Address, std::size_t, Stream))                     \
  X(memcpy_d2d_async, cuMemcpyDtoDAsync, 3020, (Address, Address, std::size_t, Stream))                   \
  X(memset_d8_async, cuMemsetD8Async, 3020, (Address, unsigned char, std::size_t, Stream))                \
  X(module_load_data_ex, cuModuleLoadDataEx, 2010, (Module*, const void*, unsigned, int*, void**))        \
  X(module_unload, cuModuleUnload, 2000, (Module))                                                        \
  X(module_get_function, cuModuleGetFunction, 2000, (Function*, Module, const char*))                     \
  X(launch_kernel, cuLaunchKernel, 4000,                                                                  \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,      \
     void**))                                                                                             \
  X(get_error_name, cuGetErrorName, 6000, (Result, const char**))                                         \
  X(get_error_string, cuGetErrorString, 6000, (Result, const char**))

/// The same for functions that an accepted driver may lack; they are null then.
#define PENSTOCK_CUDA_NEWER_ENTRIES(X)                                                                 \
  X(func_load, cuFuncLoad, 12040, (Function))                                                          \
  X(event_elapsed_time_2, cuEventElapsedTime, 12080, (float*, Event, Event))                           \
  X(memcpy_batch_async, cuMemcpyBatchAsync, 12080,                                                     \
    (Address*, Address*, std::size_t*, std::size_t, BatchedCopyAttributes*, std::size_t*, std::size_t, \
     std::size_t*, Stream))
