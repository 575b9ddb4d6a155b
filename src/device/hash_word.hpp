#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define PENSTOCK_HASHES __device__ __forceinline__
#else
#define PENSTOCK_HASHES inline
#endif

/// The hash of a HashRequest, for kernels and for the host.
namespace penstock {

// Each bit of the result depends on all bits; no two values have the same.
PENSTOCK_HASHES uint64_t mix_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

/// Adds a word, the `place`-th from 0 on. The last word of memory may end with bytes of zero.
PENSTOCK_HASHES void hash_word(uint64_t place, uint64_t word, uint64_t& low, uint64_t& high) {
  const uint64_t mixed = mix_bits(word + (place + 1) * 0x9E3779B97F4A7C15u);
  low += mixed;
  high += mix_bits(mixed ^ 0xD6E8FEB86659FD93u);
}

}  // namespace penstock
