#include "support/faulty_backend.hpp"
#include "support/wrong_bytes_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/link/group_measurement.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace penstock {
namespace {

using testing::Entry;
using testing::FaultyBackend;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LiveHandles;
using testing::WrongBytesBackend;

GroupMeasurementOptions hasty_group() {
  return {.bytes = 2 * kMiB, .quick = true, .repetitions = 1, .progress = {}};
}

DeviceGroup group_of(const std::vector<std::string>& specs, const DeviceOptions& options = {}) {
  std::vector<Device> devices;
  for (const std::string& spec : specs) devices.push_back(Device::open(spec, options));
  return DeviceGroup(std::move(devices));
}

void expect_whole(const GroupMeasurement& measurement, std::size_t members) {
  const GroupProfile& profile = measurement.profile;
  ASSERT_EQ(profile.members.size(), members);
  for (std::size_t i = 0; i < members; ++i) {
    EXPECT_GT(profile.members[i].link, 0);
    EXPECT_GT(profile.members[i].relayed, 0);
    ASSERT_EQ(profile.members[i].peers.size(), members);
    for (std::size_t j = 0; j < members; ++j) EXPECT_EQ(profile.members[i].peers[j] > 0, i != j);
  }
  EXPECT_GT(profile.links_at_once, 0);
  EXPECT_GT(profile.replicated, 0);
  EXPECT_GT(profile.fed_once, 0);
  EXPECT_EQ(GroupProfile::parse(profile.to_json()).to_json(), profile.to_json());
  const bool tried = std::ranges::any_of(measurement.trials, [&](const GroupTrial& trial) {
    return trial.chunk_bytes == profile.chunk_bytes && trial.slots == profile.slots &&
           trial.fed_once == profile.fed_once;
  });
  EXPECT_TRUE(tried);
  // Each link, both measurements of all links, each pair, each trial and each relay.
  const std::size_t copies =
      members + 2 * members + members * (members - 1) + measurement.trials.size() * members + members;
  EXPECT_EQ(measurement.verified_bytes, copies * measurement.bytes);
}

TEST(GroupMeasurement, MeasuresEveryLinkAndPair) {
  const GroupMeasurement measurement = measure_group(
      group_of({"host:0,link=2,peer=8", "host:1,link=2,peer=8", "host:2,link=2,peer=8"}), hasty_group());
  expect_whole(measurement, 3);
  EXPECT_TRUE(measurement.notes.empty());
  EXPECT_EQ(measurement.bytes, 2 * kMiB);
  const auto value = nlohmann::json::parse(measurement.to_json());
  EXPECT_EQ(value["trials"].size(), measurement.trials.size());
  EXPECT_EQ(GroupProfile::parse(value["profile"].dump()).to_json(), measurement.profile.to_json());
}

TEST(GroupMeasurement, MeasuresTheFakeDriversDevices) {
  expect_whole(
      measure_group(group_of({"cuda:0", "cuda:1"}, {.driver_library = PENSTOCK_FAKE_DRIVER}), hasty_group()),
      2);
}

TEST(GroupMeasurement, HoldsItsOrderOnDevicesThatCopyLate) {
  expect_whole(measure_group(group_of({"host:0,late=1", "host:1,late=1"}), hasty_group()), 2);
}

// The modelled rates differ by more than what a busy machine takes: the links carry 0.05 GB/s.
TEST(GroupMeasurement, FindsThatRelaysDoNotPayOverASlowWire) {
  GroupMeasurementOptions options = hasty_group();
  options.bytes = kMiB;
  const GroupProfile profile =
      measure_group(group_of({"host:0,link=0.05,peer=0.01", "host:1,link=0.05,peer=0.01"}), options).profile;
  EXPECT_FALSE(profile.feeding_once_pays());
}

TEST(GroupMeasurement, SaysWhichMembersDoNotReachEachOther) {
  const GroupMeasurement measurement = measure_group(group_of({"host:0", "host:1,late=1"}), hasty_group());
  ASSERT_EQ(measurement.notes.size(), 1u);
  EXPECT_THAT(measurement.notes[0], HasSubstr("do not reach each other"));
  EXPECT_EQ(measurement.profile.members[0].peers[1], 0);
}

TEST(GroupMeasurement, TakesWhatFits) {
  const GroupMeasurement measurement =
      measure_group(group_of({"host:0,memory=8MiB", "host:1,memory=8MiB"}),
                    {.bytes = 16 * kMiB, .quick = true, .repetitions = 1, .progress = {}});
  EXPECT_LE(measurement.bytes, 4 * kMiB);
  ASSERT_FALSE(measurement.notes.empty());
  EXPECT_THAT(measurement.notes.back(), HasSubstr("instead of 16 MiB"));
}

TEST(GroupMeasurement, RefusesOneDeviceAndSmallCopies) {
  EXPECT_THROW((void)measure_group(group_of({"host"}), hasty_group()), InvalidArgument);
  GroupMeasurementOptions options = hasty_group();
  options.bytes = 4096;
  EXPECT_THROW((void)measure_group(group_of({"host:0", "host:1"}), options), InvalidArgument);
}

TEST(GroupMeasurement, TrustsNoWrongBytes) {
  for (const CopyDirection direction : {CopyDirection::h2d, CopyDirection::d2d}) {
    bool spoils = false;  // the group finds out about its links by itself
    const auto spoilt = std::make_shared<WrongBytesBackend>(
        Device::open("host:1").shared_backend(), [direction, &spoils](std::size_t, CopyDirection copied) {
          return spoils && copied == direction ? WrongBytesBackend::Harm::drop
                                               : WrongBytesBackend::Harm::none;
        });
    const DeviceGroup group({Device::open("host:0"), Device(spoilt)});
    EXPECT_THAT(group.unreached(), IsEmpty());
    spoils = true;
    try {
      (void)measure_group(group, hasty_group());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("brought wrong bytes"));
    }
  }
}

TEST(GroupMeasurement, PassesOnFailuresAndStopsWithoutLeaks) {
  const auto faulty = std::make_shared<FaultyBackend>(Device::open("host:1").shared_backend());
  const DeviceGroup group({Device::open("host:0"), Device(faulty)});
  for (const Entry entry : {Entry::copy, Entry::event_record, Entry::fill, Entry::event_elapsed}) {
    for (const std::size_t nth : {1u, 2u}) {
      faulty->fail(entry, nth);
      EXPECT_THROW((void)measure_group(group, hasty_group()), DeviceError) << static_cast<int>(entry) << nth;
      faulty->heal();
      EXPECT_EQ(faulty->live(), LiveHandles{});
    }
  }
  struct Stop {};
  for (const double at : {0.0, 0.5, 0.9}) {
    GroupMeasurementOptions options = hasty_group();
    options.progress = [at](const LinkProgress& now) {
      if (now.fraction >= at) throw Stop{};
    };
    EXPECT_THROW((void)measure_group(group, options), Stop);
    EXPECT_EQ(faulty->live(), LiveHandles{});
  }
}

}  // namespace
}  // namespace penstock
