#include "doctor/read/call_names.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string_view>

namespace penstock {
namespace {

TEST(CallNames, TellWhatACallDoes) {
  struct Known {
    std::string_view name;
    std::optional<CallKind> kind;
  };
  for (const Known& known : {Known{"cudaMalloc", CallKind::allocate},
                             {"cuMemAlloc_v2", CallKind::allocate},
                             {"cudaMallocPitch_v3020", CallKind::allocate},
                             {"cudaFree_v3020", CallKind::free},
                             {"cuMemFree_v2", CallKind::free},
                             {"cudaMallocHost", CallKind::pin},
                             {"cuMemAllocHost_v2", CallKind::pin},
                             {"cudaFreeHost", CallKind::unpin},
                             {"cuMemFreeHost", CallKind::unpin},
                             {"cudaMallocAsync_v11020", std::nullopt},
                             {"cuMemAllocAsync", std::nullopt},
                             {"cudaMallocFromPoolAsync_v11020", std::nullopt},
                             {"cuMemAllocFromPoolAsync_ptsz", std::nullopt},
                             {"cudaFreeAsync_v11020", std::nullopt},
                             {"cuMemFreeAsync", std::nullopt},
                             {"cudaFreeArray_v3020", std::nullopt},
                             {"hipMalloc", CallKind::allocate},
                             {"urEnqueueKernelLaunch", CallKind::launch},
                             {"urEnqueueUSMMemcpy", CallKind::copy},
                             {"urEnqueueMemBufferWrite", CallKind::copy},
                             {"urQueueFinish", CallKind::stream_synchronize},
                             {"urUSMHostAlloc", CallKind::pin},
                             {"urUSMDeviceAlloc", CallKind::allocate},
                             {"hipHostMalloc", std::nullopt},
                             {"cudaLaunchKernel", CallKind::launch},
                             {"cudaLaunchHostFunc", std::nullopt},
                             {"cudaMemcpyAsync", CallKind::copy},
                             {"cuCtxSynchronize", CallKind::device_synchronize},
                             {"malloc", std::nullopt}})
    EXPECT_EQ(call_kind(known.name), known.kind) << known.name;
}

}  // namespace
}  // namespace penstock
