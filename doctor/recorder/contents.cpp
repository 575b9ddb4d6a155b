#include "contents.hpp"

#include "careful_copy.hpp"
#include "copied_values.hpp"
#include "doctor/read/recording_format.hpp"
#include "mix.hpp"

#include <cstddef>
#include <span>

namespace penstock::recorder {

namespace {

using recording::kSamplePieces;

constexpr std::size_t kLeastChanges = 16;  // between neighbouring pairs of words

/// False if the source cannot be read.
bool take_sample(const char* source, std::uint64_t bytes, Sample& sample) noexcept {
  iovec pieces[kSamplePieces];
  for (std::size_t i = 0; i < kSamplePieces; ++i) {
    pieces[i] = {const_cast<char*>(source + piece_begin(bytes, i)), kPieceBytes};
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
  for (std::uint64_t i = 0, before = 0; i < kSampleWords; i += 2) {
    const std::uint64_t pair = sample[i] | std::uint64_t{sample[i + 1]} << 32U;
    hash = mix(hash, pair);
    changes += i > 0 && pair != before ? 1 : 0;
    before = pair;
  }
  return changes < kLeastChanges ? 0 : recording::pack_contents(hash, judge_values(sample, memory.bytes));
}

}  // namespace penstock::recorder
