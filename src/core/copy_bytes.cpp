#include <penstock/core/copy_bytes.hpp>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if !__has_feature(thread_sanitizer)
#define PENSTOCK_STREAMING_STORES 1
#endif
#else
#define PENSTOCK_STREAMING_STORES 1
#endif
#endif

#ifdef PENSTOCK_STREAMING_STORES
#include <immintrin.h>
#endif

namespace penstock {

namespace {

#ifdef PENSTOCK_STREAMING_STORES

// Below this, the fence and the unaligned ends cost more than streaming saves.
constexpr std::size_t kStreamingMinimum = 4096;

// The destination is 64-byte aligned, and `bytes` is a multiple of 256. The thread sanitizer does not see
// these stores, so its builds always use memcpy.
__attribute__((target("avx512f"))) void stream_avx512(std::byte* to, const std::byte* from,
                                                      std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 256) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1024), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1088), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1152), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1216), _MM_HINT_T0);
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + 64);
    const __m512i c = _mm512_loadu_si512(from + i + 128);
    const __m512i d = _mm512_loadu_si512(from + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
  }
}

__attribute__((target("avx2"))) void stream_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1024), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 1088), _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
}

using StreamFunction = void (*)(std::byte*, const std::byte*, std::size_t);

StreamFunction stream_function() noexcept {
  static const StreamFunction function = __builtin_cpu_supports("avx512f") ? stream_avx512
                                         : __builtin_cpu_supports("avx2")  ? stream_avx2
                                                                           : nullptr;
  return function;
}

#endif

}  // namespace

void copy_bytes(void* destination, const void* source, std::size_t bytes, StoreKind stores) noexcept {
  if (bytes == 0) return;
#ifdef PENSTOCK_STREAMING_STORES
  if (stores == StoreKind::streaming && bytes >= kStreamingMinimum) {
    if (const StreamFunction stream = stream_function()) {
      auto* to = static_cast<std::byte*>(destination);
      const auto* from = static_cast<const std::byte*>(source);
      const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
      const std::size_t body = (bytes - head) / 256 * 256;
      std::memcpy(to, from, head);
      stream(to + head, from + head, body);
      std::memcpy(to + head + body, from + head + body, bytes - head - body);
      _mm_sfence();  // streaming stores are weakly ordered: no later store that starts a copy may pass them
      return;
    }
  }
#else
  (void)stores;
#endif
  std::memcpy(destination, source, bytes);
}

}  // namespace penstock
