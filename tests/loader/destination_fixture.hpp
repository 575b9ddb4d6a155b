#pragma once

#include "loader/loader_fixture.hpp"
#include "transfer/group_fixture.hpp"

#include <penstock/loader/loader.hpp>
#include <penstock/transfer/destination.hpp>

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::testing {

/// A device, a rank that is alone in its group, all devices of a group, and one that the others relay to.
inline std::vector<GroupCase> destination_cases() {
  using Kind = Destination::Kind;
  std::vector<GroupCase> cases = group_cases();
  for (GroupCase each : group_cases()) {
    if (each.name == "HostSlowPeers") continue;
    each.name += "Relayed";
    each.kind = Kind::relayed;
    cases.push_back(std::move(each));
  }
  for (const auto& [kind, suffix] : {std::pair{Kind::device, "Alone"}, {Kind::rank, "Rank"}}) {
    for (GroupCase each : group_cases()) {
      if (each.name.starts_with("HostSlow")) continue;
      each.name += suffix;
      each.kind = kind;
      each.specs.resize(1);
      cases.push_back(std::move(each));
    }
  }
  return cases;
}

#define PENSTOCK_DESTINATION_SUITE(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(, Suite, ::testing::ValuesIn(::penstock::testing::destination_cases()), \
                           [](const auto& each) { return each.param.name; })

/// The destination of a case, a consumer's stream on each of its devices, and a way to look into batches.
class DestinationTest : public GroupTest {
 protected:
  /// What a batch holds on each receiver.
  using HostBatches = std::vector<HostBatch>;

  void SetUp() override {
    GroupTest::SetUp();
    if (IsSkipped()) return;
    for (const Device& device : plain_)
      pinned_.push_back(make_pinned_pool(device, {.segment_bytes = 1 << 20}));
  }

  static Dataset dataset(std::size_t samples = 203) {
    return Dataset({random_field("images", DType::uint8, {3, 11, 7}, samples, 1),
                    random_field("labels", DType::int64, {}, samples, 2),
                    as_callback(random_field("read", DType::float32, {5}, samples, 3))});
  }
  [[nodiscard]] DeviceGroup group() const { return DeviceGroup(devices_); }
  [[nodiscard]] Destination destination() const {
    switch (GetParam().kind) {
      case Destination::Kind::group:
        return group();
      case Destination::Kind::relayed:
        return Destination::relayed(group());
      case Destination::Kind::device:
        return devices_[0];
      case Destination::Kind::rank:
        break;
    }
    static std::atomic<int> ranks{0};
    const std::string key = "alone " + std::to_string(getpid()) + " " + std::to_string(++ranks);
    return Destination::rank(devices_[0], {.meeting = {.key = key, .processes = 1}});
  }
  [[nodiscard]] bool is_group() const { return GetParam().kind == Destination::Kind::group; }
  /// Of the devices that receive.
  [[nodiscard]] std::span<const Stream> consumers() const {
    return std::span(streams_).first(is_group() ? size() : 1);
  }

  /// Copies each member's batch out on its stream, and then poisons it, so that old bytes in a slot would
  /// show. `first`: the member of the first batch.
  HostBatches read(const std::vector<DeviceBatch>& batches, std::size_t first = 0) {
    HostBatches all;
    std::vector<std::vector<Buffer>> there(batches.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const DeviceBatch& batch = batches[i];
      all.push_back({batch.epoch(), batch.index(), batch.indices(), {}});
      for (std::size_t f = 0; f < batch.field_count(); ++f) {
        const DeviceField& field = batch.field(f);
        EXPECT_EQ(field.shape[0], batch.size());
        there[i].push_back(pinned_[first + i].allocate(field.bytes));
        const Stream& stream = streams_[first + i];
        stream.copy(there[i].back().data(), field.data, field.bytes, CopyDirection::d2h);
        stream.fill(field.data, std::to_integer<std::uint8_t>(kPoison), field.bytes);
      }
    }
    for (std::size_t i = 0; i < batches.size(); ++i) {
      streams_[first + i].synchronize();
      for (std::size_t f = 0; f < there[i].size(); ++f) {
        const std::byte* const data = there[i][f].data();
        all[i].fields.emplace_back(data, data + batches[i].field(f).bytes);
      }
    }
    return all;
  }

  std::vector<HostBatches> read_epoch(Loader& loader) {
    std::vector<HostBatches> batches;
    while (const auto batch = loader.next(consumers())) batches.push_back(read(*batch));
    return batches;
  }

  /// Expects the same on each member: these samples, as stored.
  static void expect_batch(const Dataset& data, const HostBatches& all, std::uint64_t epoch,
                           std::uint64_t index, const std::vector<std::uint64_t>& indices) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].epoch, epoch);
      EXPECT_EQ(all[i].index, index);
      ASSERT_EQ(all[i].indices, indices) << "receiver " << i;
      for (std::size_t f = 0; f < data.field_count(); ++f) {
        std::vector<std::byte> expected(indices.size() * data.sample_bytes(f));
        data.gather(f, indices, expected);
        EXPECT_EQ(first_difference(all[i].fields[f], expected), -1)
            << "receiver " << i << ", epoch " << epoch << ", batch " << index << ", field " << f;
      }
    }
  }

  /// Expects the rest of an epoch to be that of `sampler`.
  static void expect_rest(const Dataset& data, Sampler& sampler, const std::vector<HostBatches>& batches,
                          std::uint64_t first = 0) {
    ASSERT_EQ(batches.size(), sampler.batches_left());
    for (const HostBatches& batch : batches) {
      std::vector<std::uint64_t> indices(static_cast<std::size_t>(sampler.options().batch_size));
      indices.resize(sampler.next(indices));
      expect_batch(data, batch, sampler.epoch(), first++, indices);
    }
    sampler.start_epoch(sampler.epoch() + 1);
  }
  static Sampler sampler_of(const Dataset& data, const LoaderOptions& options) {
    return {data.sample_count(),
            {options.shuffle, options.seed, options.batch_size, options.drop_last, options.shard}};
  }

  [[nodiscard]] std::vector<LiveHandles> live() const {
    std::vector<LiveHandles> all;
    for (const auto& one : faulty_) all.push_back(one->live());
    return all;
  }

  std::vector<Pool> pinned_;
};

}  // namespace penstock::testing
