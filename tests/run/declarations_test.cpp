#include "run/driver.hpp"

/// Compares our declarations of what copies are asked for with the vendor's, if those are found.

#if __has_include(<cudaTypedefs.h>)

#include <cuda.h>

#include <cstddef>

namespace penstock::run {

#define SAME(ours, member, theirs, name)                                  \
  static_assert(offsetof(ours, member) == offsetof(theirs, name), #name); \
  static_assert(sizeof(ours::member) == sizeof(theirs::name), #name)
#define SAME_SIDE(ours, side, theirs, name)                                       \
  static_assert(offsetof(ours, side.x) == offsetof(theirs, name##XInBytes));      \
  static_assert(offsetof(ours, side.y) == offsetof(theirs, name##Y));             \
  static_assert(offsetof(ours, side.type) == offsetof(theirs, name##MemoryType)); \
  static_assert(offsetof(ours, side.host) == offsetof(theirs, name##Host));       \
  static_assert(offsetof(ours, side.device) == offsetof(theirs, name##Device));   \
  static_assert(offsetof(ours, side.array) == offsetof(theirs, name##Array));     \
  static_assert(offsetof(ours, side.pitch) == offsetof(theirs, name##Pitch))

SAME_SIDE(PlaneCopy, from, CUDA_MEMCPY2D, src);
SAME_SIDE(PlaneCopy, to, CUDA_MEMCPY2D, dst);
SAME(PlaneCopy, width, CUDA_MEMCPY2D, WidthInBytes);
SAME(PlaneCopy, height, CUDA_MEMCPY2D, Height);
static_assert(sizeof(PlaneCopy) == sizeof(CUDA_MEMCPY2D));
SAME_SIDE(BoxCopy, from, CUDA_MEMCPY3D, src);
SAME_SIDE(BoxCopy, to, CUDA_MEMCPY3D, dst);
static_assert(offsetof(BoxCopy, from.z) == offsetof(CUDA_MEMCPY3D, srcZ));
static_assert(offsetof(BoxCopy, from.level) == offsetof(CUDA_MEMCPY3D, srcLOD));
static_assert(offsetof(BoxCopy, from.reserved) == offsetof(CUDA_MEMCPY3D, reserved0));
static_assert(offsetof(BoxCopy, from.height) == offsetof(CUDA_MEMCPY3D, srcHeight));
static_assert(offsetof(BoxCopy, to.height) == offsetof(CUDA_MEMCPY3D, dstHeight));
SAME(BoxCopy, width, CUDA_MEMCPY3D, WidthInBytes);
SAME(BoxCopy, height, CUDA_MEMCPY3D, Height);
SAME(BoxCopy, depth, CUDA_MEMCPY3D, Depth);
static_assert(sizeof(BoxCopy) == sizeof(CUDA_MEMCPY3D));
static_assert(static_cast<int>(MemoryType::host) == CU_MEMORYTYPE_HOST);
static_assert(static_cast<int>(MemoryType::device) == CU_MEMORYTYPE_DEVICE);
static_assert(static_cast<int>(MemoryType::array) == CU_MEMORYTYPE_ARRAY);
static_assert(static_cast<int>(MemoryType::unified) == CU_MEMORYTYPE_UNIFIED);
#if CUDA_VERSION >= 12080
SAME(BatchAttributes, order, CUmemcpyAttributes, srcAccessOrder);
SAME(BatchAttributes, flags, CUmemcpyAttributes, flags);
static_assert(sizeof(BatchAttributes) == sizeof(CUmemcpyAttributes));
static_assert(static_cast<int>(AccessOrder::stream) == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(static_cast<int>(AccessOrder::during_call) == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
static_assert(static_cast<int>(AccessOrder::any) == CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
#endif

#undef SAME
#undef SAME_SIDE

}  // namespace penstock::run

#endif
