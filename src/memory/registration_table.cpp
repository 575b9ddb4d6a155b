#include "memory/registration_table.hpp"

#include "device/shared/mapping.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <iterator>
#include <memory>

namespace penstock {

namespace {

void* pointer(std::uintptr_t address) noexcept { return reinterpret_cast<void*>(address); }

[[noreturn]] void refuse_overlap(std::uintptr_t begin, std::size_t bytes, std::uintptr_t other_begin,
                                 std::size_t other_bytes) {
  const std::uintptr_t low = std::min(begin, other_begin);
  const std::uintptr_t high = std::max(begin + bytes, other_begin + other_bytes);
  throw Unsupported(fmt::format(
      "The pages of {} at {} overlap the {} at {} that are registered already, and a device does not lock a "
      "page twice. Register the range that encloses both, {} at {}, before its parts; they then share it.",
      format_bytes(bytes), pointer(begin), format_bytes(other_bytes), pointer(other_begin),
      format_bytes(high - low), pointer(low)));
}

}  // namespace

RegistrationTable::Handle RegistrationTable::acquire(const Device& device, std::uintptr_t begin,
                                                     std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Handle near = last_up_to(begin + bytes - 1);
  if (near != entries_.end()) {
    const std::uintptr_t near_end = near->first + near->second.bytes;
    if (near->first <= begin && begin + bytes <= near_end) {
      ++near->second.uses;
      return near;
    }
    if (near_end > begin) refuse_overlap(begin, bytes, near->first, near->second.bytes);
  }
  return add(device, begin, bytes);
}

RegistrationTable::Overlap RegistrationTable::overlap(std::uintptr_t begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Handle near = last_up_to(begin + bytes - 1);
  if (near == entries_.end() || near->first + near->second.bytes <= begin) return Overlap::none;
  const bool whole = near->first <= begin && near->first + near->second.bytes >= begin + bytes;
  return whole ? Overlap::whole : Overlap::part;
}

RegistrationTable::Handle RegistrationTable::last_up_to(std::uintptr_t address) noexcept {
  const Handle after = entries_.upper_bound(address);
  return after == entries_.begin() ? entries_.end() : std::prev(after);
}

RegistrationTable::Handle RegistrationTable::add(const Device& device, std::uintptr_t begin,
                                                 std::size_t bytes) {
  const MappingKind mapping = inspect_mapping(pointer(begin), bytes);
  if (!mapping.readable) {
    throw InvalidArgument(
        fmt::format("{} at {} cannot be registered: they are not all mapped, or not for reading",
                    format_bytes(bytes), pointer(begin)));
  }
  const Handle entry = entries_.try_emplace(begin, Entry{bytes, 1, !mapping.writable, nullptr}).first;
  bool locked = false;
  try {
    device.register_host(pointer(begin), bytes, entry->second.read_only);
    locked = true;
    entry->second.device_address = static_cast<std::byte*>(device.device_address(pointer(begin)));
  } catch (...) {
    if (locked) device.unregister_host(pointer(begin));
    entries_.erase(entry);
    throw;
  }
  return entry;
}

void RegistrationTable::release(const Device& device, Handle entry) noexcept {
  const std::lock_guard lock(mutex_);
  if (--entry->second.uses > 0) return;
  device.unregister_host(pointer(entry->first));
  entries_.erase(entry);
}

}  // namespace penstock
