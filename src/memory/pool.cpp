#include "memory/device_resource.hpp"
#include "memory/pinned_resource.hpp"
#include "memory/pool_state.hpp"

#include <penstock/memory/buffer.hpp>
#include <penstock/memory/pool.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

Buffer::Buffer(std::shared_ptr<PoolState> pool, std::byte* data, std::size_t bytes, MemoryKind kind) noexcept
    : pool_(std::move(pool)), data_(data), bytes_(bytes), kind_(kind) {}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(other.kind_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::move(other.pool_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    kind_ = other.kind_;
  }
  return *this;
}

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  bytes_ = 0;
  const std::shared_ptr<PoolState> pool = std::move(pool_);
  pool->release(std::exchange(data_, nullptr));
}

void Buffer::release_after(const Stream& stream) {
  if (data_ == nullptr) return;
  bytes_ = 0;
  const std::shared_ptr<PoolState> pool = std::move(pool_);
  pool->release_after(std::exchange(data_, nullptr), stream);
}

Pool::Pool(Device device, std::shared_ptr<MemoryResource> upstream, PoolOptions options, std::string name)
    : state_(PoolState::create(std::move(device), std::move(upstream), std::move(options), std::move(name))) {
}

Pool::~Pool() = default;
Pool::Pool(Pool&&) noexcept = default;
Pool& Pool::operator=(Pool&&) noexcept = default;

Buffer Pool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
Buffer Pool::allocate_wait(std::size_t bytes) { return state_->allocate_wait(bytes); }
void Pool::reserve(std::size_t bytes) { state_->reserve(bytes); }
PoolStatistics Pool::statistics() const { return state_->statistics(); }
MemoryKind Pool::kind() const noexcept { return state_->kind(); }
const Device& Pool::device() const noexcept { return state_->device(); }

Pool make_pinned_pool(const Device& device, PoolOptions options) {
  return Pool(device, std::make_shared<PinnedResource>(device, options.workers), options,
              fmt::format("pinned pool of {}{}{}", device.info().spec, options.purpose.empty() ? "" : " for ",
                          options.purpose));
}

PinnedMemory pinned_memory() { return PoolState::pinned_memory(); }

Pool make_device_pool(const Device& device, PoolOptions options) {
  return Pool(device, std::make_shared<DeviceResource>(device), std::move(options),
              fmt::format("device pool of {}", device.info().spec));
}

}  // namespace penstock
