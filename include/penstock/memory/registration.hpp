#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace penstock {

/// Page-locks existing memory for as long as the object lives. Ranges are widened to whole pages. A range
/// within one that is already registered with the device, through any copy of that Device, shares it. Any
/// other overlap is refused, even of a single page, since a device does not lock a page twice. If ranges
/// overlap, register the range that encloses them first; each of them then shares it. The memory must stay
/// mapped until its last registration is gone and all transfers from it are done. Move-only. Thread-safe: any
/// thread may register and unregister. Both block the host, for about 30 ms per GiB of touched memory. As
/// with any locked memory, the parent's writes after a fork may go to a copy of the page that the device does
/// not see.
class Registration {
 public:
  /// Locks [data, data + bytes). The device may write it if the mapping allows writing, otherwise only read.
  /// Throws InvalidArgument for null, empty or unmapped ranges. Throws Unsupported if the kernel (for file
  /// mappings of some file systems), a limit (`ulimit -l`) or the device refuses. A refusal changes nothing.
  Registration(const Device& device, const void* data, std::size_t bytes);
  ~Registration();
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;

  /// As the constructor, but a refusal gives nullopt and writes its reason to `why` if that is not null.
  [[nodiscard]] static std::optional<Registration> attempt(const Device& device, const void* data,
                                                           std::size_t bytes, std::string* why = nullptr);

  /// True if a page of [data, data + bytes) is now registered with the device. If it is false for locked
  /// memory, another library locked the memory.
  [[nodiscard]] static bool overlaps(const Device& device, const void* data, std::size_t bytes);

  /// True if some pages of the range are registered but no one registration covers them all. Treat such
  /// memory as pageable: pages between two locked ones need not be locked.
  [[nodiscard]] static bool overlaps_in_part(const Device& device, const void* data, std::size_t bytes);

  /// The range that was asked for.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;
  [[nodiscard]] bool read_only() const noexcept;
  /// Where a kernel of the device reads the first byte asked for.
  [[nodiscard]] const void* device_address() const noexcept;
  static constexpr MemoryKind kind = MemoryKind::registered;

 private:
  struct State;
  explicit Registration(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
