#include "contents.hpp"

#include "careful_copy.hpp"
#include "doctor/recording_format.hpp"
#include "mix.hpp"

#include <cstddef>
#include <span>

namespace penstock::recorder {

namespace {

using recording::kSampleBytes;
using recording::kSamplePieces;

constexpr std::size_t kPieceBytes = kSampleBytes / kSamplePieces;
constexpr std::size_t kWords = kSampleBytes / sizeof(std::uint64_t);
constexpr std::size_t kLeastChanges = 16;  // between neighbouring words

/// Copies pieces from all over the source, its first and its last bytes among them. False if it cannot be
/// read.
bool take_sample(const char* source, std::uint64_t bytes, std::uint64_t (&sample)[kWords]) noexcept {
  iovec pieces[kSamplePieces];
  for (std::size_t i = 0; i < kSamplePieces; ++i) {
    const std::uint64_t at = (bytes - kPieceBytes) * i / (kSamplePieces - 1);
    pieces[i] = {const_cast<char*>(source + at), kPieceBytes};
  }
  return copy_pieces_carefully(pieces, std::span(reinterpret_cast<char*>(sample), sizeof sample)) ==
         sizeof sample;
}

}  // namespace

std::uint64_t hash_input(const HostMemory& memory) noexcept {
  if (!memory.is_source || memory.bytes <= recording::kSmallCopyBytes) return 0;
  std::uint64_t sample[kWords];
  if (!take_sample(static_cast<const char*>(memory.begin), memory.bytes, sample)) return 0;
  std::size_t changes = 0;
  std::uint64_t hash = mix(0, memory.bytes);
  for (std::size_t i = 0; i < kWords; ++i) {
    hash = mix(hash, sample[i]);
    changes += i > 0 && sample[i] != sample[i - 1] ? 1 : 0;
  }
  return changes < kLeastChanges ? 0 : hash | 1;
}

}  // namespace penstock::recorder
