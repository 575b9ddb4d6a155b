#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace penstock {

/// Page-locks memory that already exists, for as long as the object lives. Ranges are widened to whole pages.
/// Counted: registering a range that lies within one already registered with the device (through any copy
/// of that Device) shares it. Ranges that overlap otherwise, if only in a page at their ends, are refused,
/// since a device locks no page twice: register what encloses them first, and each of them shares that. The
/// memory must stay mapped until the last registration of it is gone and all transfers from it are done.
/// Move-only. Thread-safe: any thread may register and unregister; both block the host (about 30 ms per GiB
/// of touched memory). After a fork, what the parent writes there may reach a copy of the page that the
/// device does not see, as with any locked memory.
class Registration {
 public:
  /// Locks [data, data + bytes). The device may write it where the mapping allows writing, otherwise only
  /// read. Throws InvalidArgument for null, empty or unmapped ranges, and Unsupported where the kernel (file
  /// mappings of some file systems), a limit (`ulimit -l`) or the device refuses. After a refusal everything
  /// works as before.
  Registration(const Device& device, const void* data, std::size_t bytes);
  ~Registration();
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;

  /// As the constructor, but a refusal gives nullopt, and its reason in `why` where that is not null.
  [[nodiscard]] static std::optional<Registration> attempt(const Device& device, const void* data,
                                                           std::size_t bytes, std::string* why = nullptr);

  /// True where a page of [data, data + bytes) is registered with the device now. What is locked all
  /// the same was locked by somebody else.
  [[nodiscard]] static bool overlaps(const Device& device, const void* data, std::size_t bytes);

  /// As above, and no single registration holds all pages of the range: what is locked at both ends, for
  /// neighbours, need not be locked between.
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
