#pragma once

#include <penstock/device/memory_kind.hpp>

#include <cstddef>

namespace penstock {

/// A source of memory. Thread-safe. Pools allocate from an upstream resource; tests decorate one.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  /// `bytes` > 0, aligned to `alignment` (a power of two up to a page); contents undefined. Throws
  /// OutOfMemory.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, std::size_t alignment) = 0;
  /// Takes back memory of `allocate`, with the same figures. All work on it is done.
  virtual void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept = 0;

  [[nodiscard]] virtual MemoryKind kind() const noexcept = 0;
};

}  // namespace penstock
