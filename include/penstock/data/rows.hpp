#pragma once

#include <penstock/data/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Where the values of several fields lie in a row, which holds one sample. Each value is aligned to its
/// type.
struct RowLayout {
  std::vector<std::size_t> offsets;  ///< of each field in a row, in bytes
  std::size_t row_bytes = 0;         ///< a multiple of 16
};

/// The fields of the widest types come first, so that there are no gaps but at a row's end.
[[nodiscard]] RowLayout lay_out_row(std::span<const Field> fields);

/// The samples of several fields side by side, as one field of uint8 called `name`. Bytes between fields and
/// at a row's end are zero. Each gather reads the fields anew. Throws InvalidArgument if their numbers of
/// samples differ, if a sample exceeds 16 KiB, or if the layout has another number of fields.
[[nodiscard]] std::shared_ptr<const FieldReader> read_rows(
    std::string name, std::vector<std::shared_ptr<const FieldReader>> fields, RowLayout layout);

/// Samples that lie at equal distances: sample i at byte i * `stride` of `memory`, which the last one ends.
/// Samples may overlap, as windows of a series do. The caller owns `memory`; `keep_alive` as for read_array.
/// The reader's memory() is empty. Throws InvalidArgument if `memory` does not end with a sample.
[[nodiscard]] std::shared_ptr<const FieldReader> read_strided(Field field, std::span<const std::byte> memory,
                                                              std::size_t stride,
                                                              std::shared_ptr<const void> keep_alive);

}  // namespace penstock
