#pragma once

#include <penstock/core/error.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::testing {

/// Ordinary memory that claims to be any kind. The resource frees memory that was not given back, so that a
/// test of a deliberate leak does not leak.
class HeapResource final : public MemoryResource {
 public:
  explicit HeapResource(MemoryKind kind = MemoryKind::pageable) : kind_(kind) {}
  ~HeapResource() override {
    for (const auto& [data, bytes] : live_) std::free(data);
  }

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    void* const data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (data == nullptr) throw OutOfMemory("the heap", bytes, 0, 0);
    const std::lock_guard lock(mutex_);
    live_.emplace(data, bytes);
    return data;
  }

  void deallocate(void* data, std::size_t, std::size_t) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      live_.erase(data);
    }
    std::free(data);
  }

  MemoryKind kind() const noexcept override { return kind_; }

 private:
  MemoryKind kind_;
  std::mutex mutex_;
  std::map<void*, std::size_t> live_;
};

/// Counts calls and bytes, and notes memory that comes back with other figures than it left with.
class CountingResource final : public MemoryResource {
 public:
  explicit CountingResource(std::shared_ptr<MemoryResource> upstream) : upstream_(std::move(upstream)) {}

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    ++attempts_;
    void* const data = upstream_->allocate(bytes, alignment);
    const std::lock_guard lock(mutex_);
    live_.emplace(data, std::pair{bytes, alignment});
    live_bytes_ += bytes;
    if (live_bytes_ > peak_bytes_) peak_bytes_ = live_bytes_;
    ++allocations_;
    return data;
  }

  void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      const auto entry = live_.find(data);
      if (entry == live_.end() || entry->second != std::pair{bytes, alignment}) {
        ++wrong_returns_;
        return;
      }
      live_.erase(entry);
      live_bytes_ -= bytes;
    }
    upstream_->deallocate(data, bytes, alignment);
  }

  MemoryKind kind() const noexcept override { return upstream_->kind(); }

  std::size_t attempts() const { return attempts_; }
  std::size_t allocations() const { return read(allocations_); }
  std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }
  std::size_t live_bytes() const { return read(live_bytes_); }
  std::size_t peak_bytes() const { return read(peak_bytes_); }
  std::size_t wrong_returns() const { return read(wrong_returns_); }

 private:
  std::size_t read(const std::size_t& figure) const {
    const std::lock_guard lock(mutex_);
    return figure;
  }

  std::shared_ptr<MemoryResource> upstream_;
  mutable std::mutex mutex_;
  std::map<void*, std::pair<std::size_t, std::size_t>> live_;
  std::atomic<std::size_t> attempts_{0};
  std::size_t allocations_ = 0;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::size_t wrong_returns_ = 0;
};

/// Calls a function before each call to upstream: one that throws refuses, one that waits delays.
class HookedResource final : public MemoryResource {
 public:
  explicit HookedResource(std::shared_ptr<MemoryResource> upstream) : upstream_(std::move(upstream)) {}

  std::function<void(std::size_t bytes)> before_allocate = [](std::size_t) {};
  std::function<void()> before_deallocate = [] {};

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    before_allocate(bytes);
    return upstream_->allocate(bytes, alignment);
  }
  void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override {
    before_deallocate();
    upstream_->deallocate(data, bytes, alignment);
  }
  MemoryKind kind() const noexcept override { return upstream_->kind(); }

 private:
  std::shared_ptr<MemoryResource> upstream_;
};

}  // namespace penstock::testing
