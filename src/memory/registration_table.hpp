#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace penstock {

/// The ranges of host memory that are registered with one device, with their numbers of uses. An attachment
/// of Device. Thread-safe. Calls the driver under its lock, so that nothing is registered twice.
class RegistrationTable {
 public:
  struct Entry {
    std::size_t bytes = 0;
    std::size_t uses = 0;
    bool read_only = false;
    std::byte* device_address = nullptr;
  };
  using Handle = std::map<std::uintptr_t, Entry>::iterator;

  /// Registers whole pages, or shares the registration that they lie in. Throws as Registration does.
  [[nodiscard]] Handle acquire(const Device& device, std::uintptr_t begin, std::size_t bytes);
  void release(const Device& device, Handle entry) noexcept;
  enum class Overlap : std::uint8_t { none, part, whole };
  [[nodiscard]] Overlap overlap(std::uintptr_t begin, std::size_t bytes);

 private:
  [[nodiscard]] Handle last_up_to(std::uintptr_t address) noexcept;
  [[nodiscard]] Handle add(const Device& device, std::uintptr_t begin, std::size_t bytes);

  std::mutex mutex_;
  std::map<std::uintptr_t, Entry> entries_;  // by first address, disjoint
};

}  // namespace penstock
