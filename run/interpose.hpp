#pragma once

#include "run/driver.hpp"

#include <string>

/// How this library comes between a program and its driver. A program that is linked to the driver finds this
/// library's functions first, which are named as the driver's. Other programs, and CUDA's runtime, ask
/// dlsym and cuGetProcAddress, whose answers are replaced. This library's own code asks the same functions
/// and gets the driver's entries.
namespace penstock::run {

/// X(symbol of the driver, name that cuGetProcAddress knows, version since, default stream, ends or kind)
#define PENSTOCK_RUN_BLOCKING_COPIES(X)                              \
  X(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, legacy, to_device)          \
  X(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, 3020, per_thread, to_device) \
  X(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, legacy, to_host)            \
  X(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, 3020, per_thread, to_host)   \
  X(cuMemcpy, cuMemcpy, 4000, legacy, any)                           \
  X(cuMemcpy_ptds, cuMemcpy, 4000, per_thread, any)
#define PENSTOCK_RUN_ASYNC_COPIES(X)                                           \
  X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020, legacy, to_device)          \
  X(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, 3020, per_thread, to_device) \
  X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020, legacy, to_host)            \
  X(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, 3020, per_thread, to_host)   \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000, legacy, any)                           \
  X(cuMemcpyAsync_ptsz, cuMemcpyAsync, 4000, per_thread, any)
#define PENSTOCK_RUN_BLOCKING_BOXES(X)                                             \
  X(cuMemcpy2D_v2, cuMemcpy2D, 3020, legacy, PlaneCopy)                            \
  X(cuMemcpy2D_v2_ptds, cuMemcpy2D, 3020, per_thread, PlaneCopy)                   \
  X(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, legacy, PlaneCopy)          \
  X(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, 3020, per_thread, PlaneCopy) \
  X(cuMemcpy3D_v2, cuMemcpy3D, 3020, legacy, BoxCopy)                              \
  X(cuMemcpy3D_v2_ptds, cuMemcpy3D, 3020, per_thread, BoxCopy)
#define PENSTOCK_RUN_ASYNC_BOXES(X)                                        \
  X(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, legacy, PlaneCopy)          \
  X(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, 3020, per_thread, PlaneCopy) \
  X(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, 3020, legacy, BoxCopy)            \
  X(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, 3020, per_thread, BoxCopy)
/// Batches whose copies can fail one by one, which were the first form, and others.
#define PENSTOCK_RUN_FAILING_BATCHES(X)                    \
  X(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080, legacy) \
  X(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, 12080, per_thread)
#define PENSTOCK_RUN_BATCHES(X)                               \
  X(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, 13000, legacy) \
  X(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, 13000, per_thread)
/// What a copy must know of.
#define PENSTOCK_RUN_OTHER_ENTRIES(X)                                   \
  X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, either) \
  X(cuGetProcAddress, cuGetProcAddress, 11030, legacy)                  \
  X(cuGetProcAddress_v2, cuGetProcAddress, 12000, legacy)               \
  X(cuGetProcAddress_v2_ptsz, cuGetProcAddress, 12000, per_thread)
#define PENSTOCK_RUN_ENTRIES(X)   \
  PENSTOCK_RUN_BLOCKING_COPIES(X) \
  PENSTOCK_RUN_ASYNC_COPIES(X)    \
  PENSTOCK_RUN_BLOCKING_BOXES(X)  \
  PENSTOCK_RUN_ASYNC_BOXES(X)     \
  PENSTOCK_RUN_FAILING_BATCHES(X) \
  PENSTOCK_RUN_BATCHES(X)         \
  PENSTOCK_RUN_OTHER_ENTRIES(X)

/// The function that stands in for the driver's `symbol`, whose own is `real`. Null if none does, or if
/// `real` is of another library than the first driver that was asked for.
[[nodiscard]] void* stand_in(const char* symbol, void* real);

/// True if `address` lies in the code of this library.
[[nodiscard]] bool is_own_code(const void* address) noexcept;

/// dlsym of the C library. With RTLD_NEXT, what comes after this library.
[[nodiscard]] void* real_dlsym(void* library, const char* symbol) noexcept;

/// The file of the library that has `function`.
[[nodiscard]] std::string library_of(const void* function);

}  // namespace penstock::run
