#include "memory/host_pages.hpp"
#include "memory/registration_table.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/memory/registration.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace penstock {

namespace {

RegistrationTable::Overlap overlap_of(const Device& device, const void* data, std::size_t bytes) {
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(data) & ~(page_bytes() - 1);
  return device.attachment<RegistrationTable>().overlap(
      first, align_up(reinterpret_cast<std::uintptr_t>(data) + bytes, page_bytes()) - first);
}

}  // namespace

struct Registration::State {
  State(Device opened, const void* data, std::size_t count)
      : device(std::move(opened)), asked(static_cast<const std::byte*>(data), count) {
    const auto first = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t last_page = ~(page_bytes() - 1);
    if (data == nullptr || count == 0 || first >= last_page || count > last_page - first) {
      throw InvalidArgument(fmt::format("{} bytes at {} are not a range of memory to register", count, data));
    }
    const std::uintptr_t begin = first & ~(page_bytes() - 1);
    const std::size_t bytes = align_up(first + count, page_bytes()) - begin;
    // Throws in a forked child, before it takes a lock that a thread of the parent may have held.
    static_cast<void>(device.kind_of(data));
    table = &device.attachment<RegistrationTable>();
    range = table->acquire(device, begin, bytes);
    read_only = range->second.read_only;
    device_address = range->second.device_address + (first - range->first);
  }

  ~State() {
    if (generation == fork_generation()) table->release(device, range);
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device device;
  std::span<const std::byte> asked;
  std::uint64_t generation = fork_generation();
  RegistrationTable* table = nullptr;  // the device's
  RegistrationTable::Handle range;
  bool read_only = false;
  const std::byte* device_address = nullptr;
};

Registration::Registration(const Device& device, const void* data, std::size_t bytes)
    : Registration(std::make_unique<State>(device, data, bytes)) {}

Registration::Registration(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

Registration::~Registration() = default;
Registration::Registration(Registration&&) noexcept = default;
Registration& Registration::operator=(Registration&&) noexcept = default;

std::optional<Registration> Registration::attempt(const Device& device, const void* data, std::size_t bytes,
                                                  std::string* why) {
  try {
    return Registration(device, data, bytes);
  } catch (const Unsupported& refused) {
    if (why != nullptr) *why = refused.what();
    return std::nullopt;
  }
}

bool Registration::overlaps(const Device& device, const void* data, std::size_t bytes) {
  return overlap_of(device, data, bytes) != RegistrationTable::Overlap::none;
}

bool Registration::overlaps_in_part(const Device& device, const void* data, std::size_t bytes) {
  return overlap_of(device, data, bytes) == RegistrationTable::Overlap::part;
}

std::span<const std::byte> Registration::bytes() const noexcept { return state_->asked; }

bool Registration::read_only() const noexcept { return state_->read_only; }

const void* Registration::device_address() const noexcept { return state_->device_address; }

}  // namespace penstock
