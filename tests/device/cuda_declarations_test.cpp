#include "device/cuda/driver_types.hpp"

#include <gtest/gtest.h>

/// Compares our declarations of the driver's interface with the vendor's, if those are found.

#if __has_include(<cudaTypedefs.h>)

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

namespace penstock::cuda {

namespace {

template <typename T>
constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

template <typename Ours, typename Theirs>
constexpr bool same_argument();

template <typename Ours, typename Theirs>
constexpr bool same_target() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (is_number<Ours> || std::is_pointer_v<Ours> || std::is_floating_point_v<Ours>) {
    return same_argument<Ours, Theirs>();
  } else {
    return std::is_class_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
constexpr bool same_argument() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
           same_target<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
  } else {
    return sizeof(Ours) == sizeof(Theirs) &&
           ((is_number<Ours> && is_number<Theirs>) ||
            (std::is_floating_point_v<Ours> && std::is_floating_point_v<Theirs>) ||
            (std::is_class_v<Ours> && std::is_class_v<Theirs>));
  }
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};

template <typename... Ours, typename TheirResult, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameFunction<Result (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<sizeof(TheirResult) == sizeof(Result) && (same_argument<Ours, Theirs>() && ...)> {};

#define COMPARE(member, symbol, version, parameters) \
  static_assert(SameFunction<Result(*) parameters, PFN_##symbol##_v##version>::value, #symbol);
PENSTOCK_CUDA_ENTRIES(COMPARE)
#if CUDA_VERSION >= 12080
PENSTOCK_CUDA_NEWER_ENTRIES(COMPARE)
static_assert(sizeof(BatchedCopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(BatchedCopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(kSourceAccessOrderStream == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(kPreferOverlapWithCompute == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
#endif
#undef COMPARE

static_assert(!SameFunction<Result (*)(Stream, Event), PFN_cuStreamWaitEvent_v3020>::value);
static_assert(!SameFunction<Result (*)(unsigned*, std::size_t), PFN_cuMemAlloc_v3020>::value);
static_assert(!SameFunction<Result (*)(Address*, unsigned), PFN_cuMemAlloc_v3020>::value);
static_assert(std::is_same_v<Address, CUdeviceptr>);
static_assert(std::is_same_v<Ordinal, CUdevice>);
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(IpcMemoryHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(PageProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(PageProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(sizeof(PageAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(PageAccess, flags) == offsetof(CUmemAccessDesc, flags));

TEST(CudaDeclarations, ValuesAreThoseOfCudaH) {
  EXPECT_EQ(kSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
  EXPECT_EQ(kNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(kMapFailed, CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(kJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
  EXPECT_EQ(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
  EXPECT_EQ(kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(kAssert, CUDA_ERROR_ASSERT);
  EXPECT_EQ(kTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS);
  EXPECT_EQ(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
  EXPECT_EQ(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
  EXPECT_EQ(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
  EXPECT_EQ(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
  EXPECT_EQ(kInvalidPc, CUDA_ERROR_INVALID_PC);
  EXPECT_EQ(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  const auto attribute = [](auto value) { return static_cast<int>(value); };
  EXPECT_EQ(attribute(DeviceAttribute::multiprocessors), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(attribute(DeviceAttribute::compute_major), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(attribute(DeviceAttribute::compute_minor), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(attribute(DeviceAttribute::read_only_host_register),
            CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
  EXPECT_EQ(attribute(PointerAttribute::context), CU_POINTER_ATTRIBUTE_CONTEXT);
  EXPECT_EQ(attribute(PointerAttribute::memory_type), CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_EQ(attribute(PointerAttribute::device_pointer), CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
  EXPECT_EQ(attribute(PointerAttribute::is_managed), CU_POINTER_ATTRIBUTE_IS_MANAGED);
  EXPECT_EQ(attribute(PointerAttribute::device_ordinal), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_EQ(attribute(PointerAttribute::is_legacy_cuda_ipc_capable),
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
  EXPECT_EQ(kMemoryTypeHost, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(kMemoryTypeDevice, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(kStreamNonBlocking, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(kStreamWaitValueGeq, static_cast<unsigned>(CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_EQ(kEventDefault, static_cast<unsigned>(CU_EVENT_DEFAULT));
  EXPECT_EQ(kEventBlockingSync, static_cast<unsigned>(CU_EVENT_BLOCKING_SYNC));
  EXPECT_EQ(kEventDisableTiming, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(kHostAllocPortable, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE));
  EXPECT_EQ(kHostAllocDeviceMap, static_cast<unsigned>(CU_MEMHOSTALLOC_DEVICEMAP));
  EXPECT_EQ(kHostRegisterPortable, static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_EQ(kHostRegisterDeviceMap, static_cast<unsigned>(CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_EQ(kHostRegisterReadOnly, static_cast<unsigned>(CU_MEMHOSTREGISTER_READ_ONLY));
  EXPECT_EQ(kIpcLazyEnablePeerAccess, static_cast<unsigned>(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

}  // namespace

}  // namespace penstock::cuda

#else

TEST(CudaDeclarations, ValuesAreThoseOfCudaH) { GTEST_SKIP() << "waived: no cuda.h here"; }

#endif
