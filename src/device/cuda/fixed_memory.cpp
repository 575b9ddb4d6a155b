#include "device/cuda/cuda_context.hpp"
#include "device/cuda/device_info.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/fixed_memory.hpp>

#include <fmt/format.h>

namespace penstock {

namespace {

using namespace cuda;

Address as_address(const std::byte* data) { return reinterpret_cast<Address>(data); }

std::unique_ptr<const PrimaryContext> open_context(int gpu, const DeviceOptions& options) {
  const Driver& driver = load_driver(options.driver_library);
  return std::make_unique<const PrimaryContext>(driver, find_device(driver, gpu));
}

}  // namespace

FixedMemory::FixedMemory(int gpu, std::size_t bytes, const DeviceOptions& options)
    : gpu_(gpu), context_(open_context(gpu, options)) {
  const Driver& driver = context_->driver();
  const PageProperties pages{.location = {.device = gpu_}};
  std::size_t page = 0;
  call(*context_, driver.page_granularity, &page, &pages, kRecommendedGranularity);
  bytes_ = align_up(bytes, page);
  Address address = 0;
  call(*context_, driver.mem_address_reserve, &address, bytes_, std::size_t{0}, Address{0}, PageFlags{0});
  data_ = reinterpret_cast<std::byte*>(address);
  try {
    take_pages();
  } catch (...) {
    free();
    throw;
  }
}

FixedMemory::~FixedMemory() { free(); }

bool FixedMemory::is_free() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::free;
}

void FixedMemory::drop_pages() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::pages) return;
  call(*context_, context_->driver().ctx_synchronize);
  call(*context_, context_->driver().mem_unmap, as_address(data_), bytes_);
  state_ = State::no_pages;
}

void FixedMemory::free() noexcept {
  const std::lock_guard lock(mutex_);
  if (state_ == State::free) return;
  release(*context_, context_->driver().ctx_synchronize);
  if (state_ == State::pages) release(*context_, context_->driver().mem_unmap, as_address(data_), bytes_);
  release(*context_, context_->driver().mem_address_free, as_address(data_), bytes_);
  state_ = State::free;
}

void FixedMemory::take_pages() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::no_pages) return;
  const Driver& driver = context_->driver();
  const PageProperties wanted{.location = {.device = gpu_}};
  const PageAccess access{.location = {.device = gpu_}};
  Pages pages = 0;
  const Result made = try_call(*context_, driver.mem_create, &pages, bytes_, &wanted, PageFlags{0});
  if (made == kOutOfMemory) {
    DeviceMemory now;
    call(*context_, driver.mem_get_info, &now.free, &now.total);
    throw OutOfMemory(fmt::format("device memory of cuda:{}", gpu_), bytes_, now.total - now.free, now.free,
                      "Other processes and libraries share it.");
  }
  driver.check(made, driver.mem_create.name);
  const Result mapped =
      try_call(*context_, driver.mem_map, as_address(data_), bytes_, std::size_t{0}, pages, PageFlags{0});
  release(*context_, driver.mem_release, pages);  // they stay as long as they are mapped
  driver.check(mapped, driver.mem_map.name);
  const Result opened =
      try_call(*context_, driver.mem_set_access, as_address(data_), bytes_, &access, std::size_t{1});
  if (opened != kSuccess) release(*context_, driver.mem_unmap, as_address(data_), bytes_);
  driver.check(opened, driver.mem_set_access.name);
  state_ = State::pages;
}

}  // namespace penstock
