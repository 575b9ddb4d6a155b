#pragma once

#include "support/bytes.hpp"
#include "support/device_cases.hpp"
#include "support/faulty_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::testing {

inline constexpr TransferPath kPaths[] = {TransferPath::direct, TransferPath::staged, TransferPath::packed};

/// A device with memory at both ends, on each of device_cases().
class EngineTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = open_or_skip(GetParam());
    if (!device_) GTEST_SKIP() << "waived: no NVIDIA driver";
    pinned_.emplace(make_pinned_pool(*device_));
    memory_.emplace(make_device_pool(*device_));
  }

  /// Device memory that holds `bytes`.
  Buffer on_device(std::span<const std::byte> bytes) {
    Buffer buffer = memory_->allocate(bytes.size());
    Buffer pinned = pinned_->allocate(bytes.size());
    std::memcpy(pinned.data(), bytes.data(), bytes.size());
    const Stream stream = device_->create_stream();
    stream.copy(buffer.data(), pinned.data(), bytes.size(), CopyDirection::h2d);
    stream.synchronize();
    return buffer;
  }

  Buffer poisoned_on_device(std::size_t bytes) { return on_device(std::vector<std::byte>(bytes, kPoison)); }

  /// The bytes of device memory once `stream`'s work so far is done.
  std::vector<std::byte> read(const void* device_memory, std::size_t bytes, const Stream& stream) {
    Buffer pinned = pinned_->allocate(bytes);
    stream.copy(pinned.data(), device_memory, bytes, CopyDirection::d2h);
    stream.synchronize();
    return {pinned.data(), pinned.data() + bytes};
  }
  std::vector<std::byte> read(const Buffer& buffer) {
    return read(buffer.data(), buffer.size(), device_->create_stream());
  }

  std::optional<Device> device_;
  std::optional<Pool> pinned_;
  std::optional<Pool> memory_;
};

/// The same behind a decorator that fails chosen calls, and knows which handles are alive.
class FaultyEngineTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (IsSkipped()) return;
    faulty_ = std::make_shared<FaultyBackend>(device_->shared_backend());
    faulty_device_.emplace(faulty_);
  }

  std::shared_ptr<FaultyBackend> faulty_;
  std::optional<Device> faulty_device_;
};

/// Small chunks and several threads, so that little data takes many turns.
inline TransferOptions many_chunks() { return {.threads = 3, .chunk_bytes = 64 * 1024, .slots = 2}; }

/// Chunks that several threads move together.
inline TransferOptions many_movers() { return {.threads = 3, .chunk_bytes = 256 * 1024, .slots = 2}; }

}  // namespace penstock::testing
