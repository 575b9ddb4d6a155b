#pragma once

#include "device/contract_suite.hpp"

#include <array>
#include <optional>

namespace penstock::testing {

struct ContractPeers {
  std::string name;
  std::function<Device(int)> open;  ///< one of two devices that reach each other, 0 or 1
  /// Called first. If it returns a sentence, there is nothing to test here, and the sentence is the skip's
  /// message.
  std::function<std::string()> waived = [] { return std::string(); };
};

inline void PrintTo(const ContractPeers& peers, std::ostream* out) { *out << peers.name; }

inline std::string peers_name(const ::testing::TestParamInfo<ContractPeers>& info) { return info.param.name; }

/// The contract of two devices that are enabled peers of each other. Each has a stream.
class PeerContract : public ::testing::TestWithParam<ContractPeers> {
 protected:
  void SetUp() override {
    if (const std::string reason = GetParam().waived(); !reason.empty()) GTEST_SKIP() << reason;
    for (const int i : {0, 1}) {
      devices_[i].emplace(GetParam().open(i));
      streams_[i].emplace(device(i).create_stream());
    }
    for (const int i : {0, 1}) device(i).enable_peer(device(1 - i));
  }

  [[nodiscard]] const Device& device(int i) const { return *devices_[i]; }
  [[nodiscard]] const Stream& stream(int i) const { return *streams_[i]; }

  void close(int i) {
    streams_[i].reset();
    devices_[i].reset();
  }

  /// Copies `bytes` to memory of device `i`, and returns when they are there.
  void upload(int i, void* destination, std::span<const std::byte> bytes) const {
    PinnedBytes staging(device(i), bytes.size());
    staging.assign(bytes);
    stream(i).copy(destination, staging.data(), bytes.size(), CopyDirection::h2d);
    stream(i).synchronize();
  }

  /// The bytes at `source`, of device `i`, after all work of its stream.
  [[nodiscard]] std::vector<std::byte> download(int i, const void* source, std::size_t bytes) const {
    PinnedBytes staging(device(i), bytes);
    stream(i).copy(staging.data(), source, bytes, CopyDirection::d2h);
    stream(i).synchronize();
    return {staging.data(), staging.data() + bytes};
  }

 private:
  std::array<std::optional<Device>, 2> devices_;
  std::array<std::optional<Stream>, 2> streams_;
};

}  // namespace penstock::testing
