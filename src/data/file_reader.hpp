#pragma once

#include "data/file.hpp"

#include <penstock/data/readers.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Reads `sample_count` samples of `field` that lie side by side in `file` from `offset` on, within its size.
/// A file up to the load limit is read from memory, a larger one from the file itself.
[[nodiscard]] FieldReaderPtr read_file(File file, Field field, std::uint64_t offset,
                                       std::uint64_t sample_count, const FileOptions& options);

/// Fills all of `destination` from `file`. Throws Error if the file ends before.
void read_exactly(const File& file, std::uint64_t offset, std::span<std::byte> destination);

/// Fills `destination` with samples of `field`, from `first` on, that lie in `file` from `offset` on. Throws
/// Error that names file and sample.
void read_samples(const File& file, const Field& field, std::uint64_t first, std::uint64_t offset,
                  std::span<std::byte> destination);

/// Reads samples from pages that it owns.
[[nodiscard]] FieldReaderPtr read_pages(Field field, HostPages pages);

/// Throws Error if two arrays of one file have different numbers of samples.
void require_same_length(const std::vector<FieldReaderPtr>& readers, const std::string& file);

}  // namespace penstock
