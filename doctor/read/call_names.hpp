#pragma once

#include "doctor/timeline/timeline.hpp"

#include <array>
#include <optional>
#include <string_view>

namespace penstock {

/// What a call of CUDA's runtime or driver, of HIP's, or of the runtime of XPUs does; nullopt if a timeline
/// does not keep it. Suffixes such as "_v2" and "_ptsz" do not matter.
[[nodiscard]] constexpr std::optional<CallKind> call_kind(std::string_view name) noexcept {
  struct CallName {
    std::string_view prefix;  ///< without "cuda", "cu", "hip" and "ur"
    std::optional<CallKind> kind;
  };
  // The first that matches counts.
  constexpr auto kNames = std::to_array<CallName>({
      {"LaunchHostFunc", std::nullopt},
      {"Launch", CallKind::launch},
      {"ModuleLaunch", CallKind::launch},
      {"ExtModuleLaunch", CallKind::launch},
      {"GraphLaunch", CallKind::launch},
      {"Memcpy", CallKind::copy},
      {"StreamSynchronize", CallKind::stream_synchronize},
      {"DeviceSynchronize", CallKind::device_synchronize},
      {"CtxSynchronize", CallKind::device_synchronize},
      {"EventSynchronize", CallKind::event_synchronize},
      {"HostAlloc", CallKind::pin},
      {"MallocHost", CallKind::pin},
      {"MemAllocHost", CallKind::pin},
      {"MemHostAlloc", CallKind::pin},
      {"HostRegister", CallKind::pin},
      {"MemHostRegister", CallKind::pin},
      {"FreeHost", CallKind::unpin},
      {"MemFreeHost", CallKind::unpin},
      {"HostUnregister", CallKind::unpin},
      {"MemHostUnregister", CallKind::unpin},
      {"MallocAsync", std::nullopt},
      {"MallocFromPoolAsync", std::nullopt},
      {"MemAllocAsync", std::nullopt},
      {"MemAllocFromPoolAsync", std::nullopt},
      {"Malloc", CallKind::allocate},
      {"MemAlloc", CallKind::allocate},
      {"FreeAsync", std::nullopt},
      {"FreeArray", std::nullopt},
      {"FreeMipmappedArray", std::nullopt},
      {"MemFreeAsync", std::nullopt},
      {"Free", CallKind::free},
      {"EnqueueKernelLaunch", CallKind::launch},
      {"EnqueueUSMMemcpy", CallKind::copy},
      {"EnqueueMemBufferRead", CallKind::copy},
      {"EnqueueMemBufferWrite", CallKind::copy},
      {"QueueFinish", CallKind::stream_synchronize},
      {"EventWait", CallKind::event_synchronize},
      {"USMHostAlloc", CallKind::pin},
      {"USMDeviceAlloc", CallKind::allocate},
      {"MemFree", CallKind::free},
  });
  for (const std::string_view vendor : {"cuda", "hip", "cu", "ur"}) {
    if (!name.starts_with(vendor)) continue;
    name.remove_prefix(vendor.size());
    for (const CallName& known : kNames) {
      if (name.starts_with(known.prefix)) return known.kind;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace penstock
