#pragma once

#include "support/bytes.hpp"
#include "support/device_cases.hpp"
#include "support/faulty_backend.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/device_group.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/transfer/destination.hpp>
#include <penstock/transfer/group_engine.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace penstock::testing {

/// Several devices, which reach each other.
struct GroupCase {
  std::string name;
  std::vector<std::string> specs;  ///< as open_for_tests() takes them
  Destination::Kind kind = Destination::Kind::group;
};

inline std::ostream& operator<<(std::ostream& out, const GroupCase& group) { return out << group.name; }

inline std::vector<GroupCase> group_cases() {
  const auto hosts = [](const std::string& options) {
    std::vector<std::string> specs;
    for (int i = 0; i < 3; ++i) specs.push_back("host:" + std::to_string(i) + ",memory=256MiB" + options);
    return specs;
  };
  return needed_here(std::vector<GroupCase>{
      {"Host", hosts("")},
      {"HostLate", hosts(",late=1")},
      {"HostSlowPeers", hosts(",link=2,peer=0.5,latency=5")},
      {"HostSlowLinks", hosts(",link=0.2,peer=2,latency=5")},
      {"FakeCuda", {"cuda:0", "cuda:1"}},
      {"Cuda", {"gpu:0", "gpu:1"}},
  });
}

/// Host memory that every device of a group reads in place.
class LockedForAll {
 public:
  LockedForAll(const std::vector<Device>& devices, std::size_t bytes)
      : pool_(make_pinned_pool(devices.front(), {.segment_bytes = 4096, .alignment = 4096})),
        memory_(pool_.allocate((bytes + 4095) / 4096 * 4096)),
        bytes_(bytes) {
    for (const Device& device : devices) {
      if (device.kind_of(memory_.data()) == MemoryKind::pageable) {
        registrations_.emplace_back(device, memory_.data(), memory_.size());
      }
    }
  }
  LockedForAll(const std::vector<Device>& devices, std::span<const std::byte> data)
      : LockedForAll(devices, data.size()) {
    std::memcpy(memory_.data(), data.data(), data.size());
  }

  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return memory_.bytes().first(bytes_); }

 private:
  Pool pool_;
  Buffer memory_;
  std::size_t bytes_;
  std::vector<Registration> registrations_;
};

/// The devices of a case, each behind a decorator that fails, holds back and counts, and device memory.
class GroupTest : public ::testing::TestWithParam<GroupCase> {
 protected:
  void SetUp() override {
    try {
      for (const std::string& spec : GetParam().specs) plain_.push_back(open_for_tests(spec));
    } catch (const Error&) {
      if (!GetParam().name.starts_with("Cuda")) throw;
      GTEST_SKIP() << "waived: too few NVIDIA GPUs";
    }
    for (const Device& device : plain_) {
      faulty_.push_back(std::make_shared<FaultyBackend>(device.shared_backend()));
      devices_.emplace_back(faulty_.back());
      memory_.push_back(make_device_pool(device, {.segment_bytes = 4096}));
      streams_.push_back(device.create_stream());
    }
  }

  [[nodiscard]] std::size_t size() const { return devices_.size(); }

  /// Poisoned memory of a member.
  Buffer poisoned(std::size_t member, std::size_t bytes) {
    Buffer buffer = memory_[member].allocate(bytes);
    poison(member, buffer);
    return buffer;
  }
  void poison(std::size_t member, const Buffer& buffer) {
    streams_[member].fill(buffer.data(), static_cast<std::uint8_t>(kPoison), buffer.size());
    streams_[member].synchronize();
  }
  /// Of every member.
  std::vector<Buffer> poisoned_for_all(std::size_t bytes) {
    std::vector<Buffer> buffers;
    for (std::size_t i = 0; i < size(); ++i) buffers.push_back(poisoned(i, bytes));
    return buffers;
  }
  static std::vector<std::byte*> places(const std::vector<Buffer>& buffers) {
    std::vector<std::byte*> all;
    for (const Buffer& buffer : buffers) all.push_back(buffer.data());
    return all;
  }

  /// The bytes of a member's memory after the work of its stream so far.
  std::vector<std::byte> read(std::size_t member, const Buffer& buffer, std::size_t bytes) {
    std::vector<std::byte> result(bytes);
    if (bytes == 0) return result;
    const LockedForAll pinned({plain_[member]}, bytes);
    streams_[member].copy(pinned.data(), buffer.data(), bytes, CopyDirection::d2h);
    streams_[member].synchronize();
    std::memcpy(result.data(), pinned.data(), bytes);
    return result;
  }
  /// Each member's stream waits for the transfer, and then reads what has arrived.
  void expect_everywhere(const Transfer& transfer, const std::vector<Buffer>& buffers,
                         std::span<const std::byte> data) {
    for (std::size_t i = 0; i < size(); ++i) {
      streams_[i].wait(transfer);
      EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << "member " << i;
    }
  }

  [[nodiscard]] std::size_t copied(CopyDirection direction) const {
    return std::accumulate(
        faulty_.begin(), faulty_.end(), std::size_t{0},
        [&](std::size_t sum, const auto& one) { return sum + one->copied_bytes(direction); });
  }

  std::vector<Device> plain_;
  std::vector<std::shared_ptr<FaultyBackend>> faulty_;
  std::vector<Device> devices_;  ///< what the group is made of
  std::vector<Pool> memory_;
  std::vector<Stream> streams_;  ///< of the plain devices
};

/// Small chunks, so that little data takes many turns.
inline GroupOptions small_chunks() { return {.threads = 2, .chunk_bytes = 64 * 1024, .slots = 2}; }

#define PENSTOCK_GROUP_SUITE(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(, Suite, ::testing::ValuesIn(::penstock::testing::group_cases()), \
                           [](const auto& each) { return each.param.name; })

}  // namespace penstock::testing
