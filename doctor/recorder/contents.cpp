#include "contents.hpp"

#include "careful_copy.hpp"
#include "doctor/read/recording_format.hpp"
#include "mix.hpp"

#include <cstddef>
#include <iterator>
#include <span>

namespace penstock::recorder {

namespace {

constexpr std::size_t kPieceBytes = recording::kSampleBytes / recording::kSamplePieces;
constexpr std::size_t kPairs = recording::kSampleBytes / sizeof(std::uint64_t);
constexpr std::size_t kLeastChanges = 16;  // between neighbouring pairs of words

/// Pieces from all over the bytes that a copy sends, one after the other.
using Sample = std::uint64_t[kPairs];

/// False if the source cannot be read.
bool take_sample(const char* source, std::uint64_t bytes, Sample& sample) noexcept {
  iovec pieces[recording::kSamplePieces];
  for (std::size_t i = 0; i < std::size(pieces); ++i) {
    const std::uint64_t begin = (bytes - kPieceBytes) * i / (std::size(pieces) - 1);
    pieces[i] = {const_cast<char*>(source + begin), kPieceBytes};
  }
  return copy_pieces_carefully(pieces, std::span(reinterpret_cast<char*>(sample), sizeof sample)) ==
         sizeof sample;
}

}  // namespace

std::uint64_t hash_input(const HostMemory& memory) noexcept {
  if (!memory.is_source || memory.bytes <= recording::kSmallCopyBytes) return 0;
  Sample sample;
  if (!take_sample(static_cast<const char*>(memory.begin), memory.bytes, sample)) return 0;
  std::size_t changes = 0;
  std::uint64_t hash = mix(0, memory.bytes);
  for (std::size_t i = 0; i < kPairs; ++i) {
    hash = mix(hash, sample[i]);
    changes += i > 0 && sample[i] != sample[i - 1] ? 1 : 0;
  }
  return changes < kLeastChanges ? 0 : hash | 1;
}

}  // namespace penstock::recorder
