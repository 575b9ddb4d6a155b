#include "loader/device_ring.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace penstock {

DeviceBatch::DeviceBatch(std::shared_ptr<DeviceRing> ring, DeviceSlot* slot) noexcept
    : ring_(std::move(ring)), slot_(slot) {}

DeviceBatch::DeviceBatch(DeviceBatch&& other) noexcept
    : ring_(std::move(other.ring_)), slot_(std::exchange(other.slot_, nullptr)) {}

DeviceBatch& DeviceBatch::operator=(DeviceBatch&& other) noexcept {
  if (this != &other) {
    DeviceBatch old(std::move(*this));
    ring_ = std::move(other.ring_);
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

DeviceBatch::~DeviceBatch() {
  try {
    release();
  } catch (...) {  // the slot is never used again; other work on the device will throw the failure
  }
}

void DeviceBatch::release() {
  if (slot_ == nullptr) return;
  const std::shared_ptr<DeviceRing> ring = std::move(ring_);
  DeviceSlot* const slot = std::exchange(slot_, nullptr);
  if (!ring->is_forked()) ring->give_back(*slot);
}

std::size_t DeviceBatch::size() const noexcept { return static_cast<std::size_t>(slot_->run.count); }
std::uint64_t DeviceBatch::epoch() const noexcept { return slot_->epoch; }
std::uint64_t DeviceBatch::index() const noexcept { return slot_->index; }
std::size_t DeviceBatch::field_count() const noexcept { return slot_->fields.size(); }

const DeviceField& DeviceBatch::field(std::size_t field) const {
  if (field >= slot_->fields.size()) {
    throw InvalidArgument(
        fmt::format("There is no field {}: the batch has {}, counted from 0.", field, slot_->fields.size()));
  }
  return slot_->fields[field];
}

const DeviceField& DeviceBatch::field(std::string_view name) const {
  const auto found = std::ranges::find(slot_->fields, name, &DeviceField::name);
  if (found == slot_->fields.end()) {
    std::vector<std::string> names;
    for (const DeviceField& field : slot_->fields) names.push_back(field.name);
    throw InvalidArgument(
        fmt::format("There is no field '{}'; there are: {}.", name, fmt::join(names, ", ")));
  }
  return *found;
}

std::vector<std::uint64_t> DeviceBatch::indices() const {
  std::vector<std::uint64_t> indices(size());
  slot_->fill(indices);
  return indices;
}

void DeviceBatch::use_on(const Stream& stream) {
  stream.wait(*slot_->ready);
  auto& users = slot_->users;
  if (std::ranges::find(users, stream.native()) == users.end()) users.push_back(stream.native());
}

}  // namespace penstock
