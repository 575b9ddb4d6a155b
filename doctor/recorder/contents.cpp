#include "contents.hpp"

#include "careful_copy.hpp"
#include "cupti.hpp"
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

InputCall input_call(int domain, std::string_view name) noexcept {
  // With what follows the name: the version, or the default stream that is meant.
  const auto is_any_of = [name](std::string_view one, std::string_view other) {
    return name.starts_with(one) || name.starts_with(other);
  };
  if (domain == kDriverDomain)
    return is_any_of("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2") ? InputCall::yes : InputCall::no;
  return is_any_of("cudaMemcpy_", "cudaMemcpyAsync_") ? InputCall::as_told : InputCall::no;
}

std::uint64_t hash_input(const void* source, std::uint64_t bytes) noexcept {
  if (bytes <= recording::kSmallCopyBytes) return 0;
  Sample sample;
  if (!take_sample(static_cast<const char*>(source), bytes, sample)) return 0;
  std::size_t changes = 0;
  std::uint64_t hash = mix(0, bytes);
  for (std::size_t i = 0; i < kPairs; ++i) {
    hash = mix(hash, sample[i]);
    changes += i > 0 && sample[i] != sample[i - 1] ? 1 : 0;
  }
  return changes < kLeastChanges ? 0 : hash | 1;
}

}  // namespace penstock::recorder
