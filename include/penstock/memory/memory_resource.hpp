#pragma once

#include <penstock/device/memory_kind.hpp>

#include <cstddef>

namespace penstock {

/// Where memory comes from. Thread-safe. Pools are resources over an upstream resource; tests decorate one to
/// count, delay or refuse.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  /// `bytes` > 0 aligned to `alignment` (a power of two up to a page). Contents are undefined. Throws
  /// OutOfMemory.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, std::size_t alignment) = 0;
  /// Takes back what `allocate` gave, with the same figures. The caller has seen all work on it done.
  virtual void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept = 0;

  [[nodiscard]] virtual MemoryKind kind() const noexcept = 0;
};

}  // namespace penstock
