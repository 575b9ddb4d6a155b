#include "memory/pinned_resource.hpp"

#include "memory/host_pages.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace penstock {

PinnedResource::PinnedResource(Device device, std::shared_ptr<HostWorkers> workers)
    : device_(std::move(device)), workers_(std::move(workers)) {}

void* PinnedResource::allocate(std::size_t bytes, std::size_t) {
  Pages pages{align_up(bytes, page_bytes()), Origin::registered};
  void* data = nullptr;
  try {
    data = map_and_register(pages.bytes);
  } catch (const Unsupported& refused) {
    data = from_driver(pages.bytes, refused.what());
    pages.origin = Origin::driver;
  }
  try {
    const std::lock_guard lock(mutex_);
    pages_.emplace(data, pages);
  } catch (...) {
    give_back(data, pages);
    throw;
  }
  return data;
}

void PinnedResource::deallocate(void* data, std::size_t, std::size_t) noexcept {
  std::unique_lock lock(mutex_);
  const Pages pages = pages_.extract(data).mapped();
  lock.unlock();
  give_back(data, pages);
}

// The whole mapping is one registration: the driver refuses a copy that crosses from one into another.
void* PinnedResource::map_and_register(std::size_t bytes) {
  const int node = device_.info().numa_node;
  void* const data = map_host_pages(bytes);
  if (data == nullptr) {
    throw OutOfMemory("host memory", bytes, 0, 0, "The kernel refuses to map that much.");
  }
  try {
    bind_memory_to_node(data, bytes, node);
    if (!touch_host_pages(data, bytes, workers_ ? *workers_ : *device_.host_workers())) {
      throw OutOfMemory("host memory", bytes, 0, 0,
                        "The machine, or this process's control group, has no pages left.");
    }
    device_.register_host(data, bytes, false);
  } catch (...) {
    unmap_host_pages(data, bytes);
    throw;
  }
  return data;
}

void* PinnedResource::from_driver(std::size_t bytes, const char* why) {
  std::string reason;
  try {
    return device_.allocate_host(bytes);
  } catch (const OutOfMemory& refused) {
    reason = refused.what();
  }
  throw OutOfMemory(
      fmt::format("pinned memory for {}", device_.info().spec), bytes, 0, 0,
      fmt::format("Locking pages was refused ({}), and so was the driver's own allocation ({}). Raise the "
                  "limit of locked memory (`ulimit -l`), or ask for less.",
                  why, reason));
}

void PinnedResource::give_back(void* data, Pages pages) noexcept {
  if (pages.origin == Origin::driver) {
    device_.deallocate_host(data);
  } else {
    device_.unregister_host(data);
    unmap_host_pages(data, pages.bytes);
  }
}

}  // namespace penstock
