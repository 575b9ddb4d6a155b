#pragma once

#include <cstddef>

namespace penstock {

/// What a whole range of this process's address space allows. Both are false if a part of it is not mapped.
struct MappingKind {
  bool readable = false;
  bool writable = false;
};

/// Reads /proc/self/maps. Thread-safe; the answer may be stale as soon as it is given. Throws Unsupported if
/// the file cannot be read.
[[nodiscard]] MappingKind inspect_mapping(const void* data, std::size_t bytes);

}  // namespace penstock
