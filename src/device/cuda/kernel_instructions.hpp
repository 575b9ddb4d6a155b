#pragma once

#include <stdint.h>

/// GPU instructions that the kernels use by name. A test that runs the kernels on a CPU defines its own.
namespace penstock::cuda {

__device__ __forceinline__ float half_to_float(unsigned bits) {
  float value;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
  return value;
}

__device__ __forceinline__ unsigned float_to_half(float value) {
  unsigned bits;
  asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ uint64_t nanoseconds_now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace penstock::cuda
