#pragma once

#include <penstock/data/readers.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

/// The samples of several arrays, one behind the other, read where they lie, which may be at equal distances.
/// If `rows` is not empty, sample i is row rows[i] of all of them. Throws InvalidArgument if a chunk lies
/// neither in memory nor in a mapped file, if types or shapes differ, if there is no chunk, and for a row
/// past the end.
[[nodiscard]] FieldReaderPtr read_chunks(std::string name, std::vector<FieldReaderPtr> chunks,
                                         std::vector<std::uint64_t> rows = {});

/// In each epoch shares[s] samples of source s, one source behind the other: a shuffled order of the source's
/// samples, which follows from `seed` and the epoch, and begins anew if the source has fewer. Sources are as
/// the chunks of read_chunks. Throws as it, and if there is not one share for each source.
[[nodiscard]] FieldReaderPtr read_draws(std::string name, std::vector<FieldReaderPtr> sources,
                                        const std::vector<std::uint64_t>& shares, std::uint64_t seed);

}  // namespace penstock
