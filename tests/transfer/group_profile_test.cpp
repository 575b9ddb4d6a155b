#include "support/comes_true.hpp"
#include "support/temp_directory.hpp"
#include "transfer/group_fixture.hpp"

#include <penstock/device/topology.hpp>
#include <penstock/transfer/group_profile.hpp>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

namespace penstock::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

DeviceGroup hosts(const std::vector<std::string>& specs) {
  std::vector<Device> devices;
  for (const std::string& spec : specs) devices.push_back(Device::open(spec));
  return DeviceGroup(std::move(devices));
}

const std::vector<std::string> kSpecs{"host:0,link=1,peer=4", "host:1,link=2,peer=4", "host:2,link=3,peer=4"};

/// Every rate differs from the others.
GroupProfile profile_of(const DeviceGroup& group) {
  GroupProfile profile = GroupProfile::named_after(group);
  double rate = 1e9;
  for (std::size_t i = 0; i < group.size(); ++i) {
    GroupProfile::Member& member = profile.members[i];
    member.link = rate += 1e6;
    member.relayed = rate += 1e6;
    for (std::size_t j = 0; j < group.size(); ++j) member.peers.push_back(i == j ? 0 : rate += 1e6);
  }
  profile.links_at_once = 3e9;
  profile.replicated = 1e9;
  profile.fed_once = 2e9;
  profile.chunk_bytes = 8 << 20;
  profile.slots = 8;
  profile.measured_at = "2026-11-24T06:00:00Z";
  return profile;
}

TEST(GroupProfile, IsTheSameAfterATripThroughJson) {
  const GroupProfile profile = profile_of(hosts(kSpecs));
  const GroupProfile again = GroupProfile::parse(profile.to_json());
  EXPECT_EQ(again.to_json(), profile.to_json());
  EXPECT_EQ(again.members[1].peers, profile.members[1].peers);
  EXPECT_EQ(again.slots, 8u);
  EXPECT_EQ(again.chunk_bytes, std::size_t{8} << 20);
}

TEST(GroupProfile, SaysWhatALinkBringsBesideTheOthers) {
  GroupProfile profile = profile_of(hosts(kSpecs));
  profile.members[0].link = profile.members[1].link = 2e9;
  profile.members[2].link = 1e9;
  profile.links_at_once = 4e9;
  EXPECT_DOUBLE_EQ(profile.link_beside_others(0), 1.6e9);
  EXPECT_DOUBLE_EQ(profile.link_beside_others(2), 0.8e9);
  profile.links_at_once = 6e9;
  EXPECT_DOUBLE_EQ(profile.link_beside_others(0), 2e9);
  EXPECT_EQ(GroupProfile::named_after(hosts(kSpecs)).link_beside_others(0), 0) << "nothing was measured";
}

TEST(GroupProfile, FollowsTheGroupsOrder) {
  const test::TempDirectory directory;
  const DeviceGroup group = hosts(kSpecs);
  const std::filesystem::path file = GroupProfile::file_for(directory.path(), group);
  profile_of(group).save(file);
  const DeviceGroup turned = hosts({kSpecs[2], kSpecs[0], kSpecs[1]});
  EXPECT_EQ(GroupProfile::file_for(directory.path(), turned), file);
  const auto loaded = GroupProfile::load(file, turned);
  ASSERT_TRUE(loaded.has_value());
  const GroupProfile wanted = profile_of(group);
  const std::vector<std::size_t> places{2, 0, 1};
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(loaded->members[i].device_uuid, wanted.members[places[i]].device_uuid);
    EXPECT_EQ(loaded->members[i].link, wanted.members[places[i]].link);
    EXPECT_EQ(loaded->members[i].relayed, wanted.members[places[i]].relayed);
    for (std::size_t j = 0; j < places.size(); ++j) {
      EXPECT_EQ(loaded->members[i].peers[j], wanted.members[places[i]].peers[places[j]]) << i << " " << j;
    }
  }
}

TEST(GroupProfile, IsRefusedForAnotherGroupDriverOrHost) {
  const test::TempDirectory directory;
  const DeviceGroup group = hosts(kSpecs);
  const std::filesystem::path file = directory.path() / "profile.json";
  const auto why = [&](const GroupProfile& profile, const DeviceGroup& asked) {
    profile.save(file);
    std::string reason;
    EXPECT_FALSE(GroupProfile::load(file, asked, &reason).has_value());
    return reason;
  };
  const GroupProfile profile = profile_of(group);
  EXPECT_THAT(why(profile, hosts({kSpecs[0], kSpecs[1]})), HasSubstr("3 devices, and there are 2"));
  EXPECT_THAT(why(profile, hosts({kSpecs[0], kSpecs[1], "host:3"})), HasSubstr("does not describe host:3"));
  GroupProfile other = profile;
  other.members[1].device_name = "another card";
  EXPECT_THAT(why(other, group), HasSubstr("does not describe host:1"));
  other = profile;
  other.driver = "0.0.1";
  EXPECT_THAT(why(other, group), HasSubstr("the driver '0.0.1'"));
  other = profile;
  other.processor = "an abacus";
  EXPECT_THAT(why(other, group), HasSubstr("the processor 'an abacus'"));
  std::filesystem::remove(file);
  std::string reason;
  EXPECT_FALSE(GroupProfile::load(file, group, &reason).has_value());
  EXPECT_THAT(reason, HasSubstr("There is no group profile at"));
}

TEST(GroupProfile, RefusesNonsenseAndOtherVersions) {
  const std::string text = profile_of(hosts(kSpecs)).to_json();
  const auto refuses = [&](const std::string& damaged, const std::string& words) {
    try {
      (void)GroupProfile::parse(damaged);
      ADD_FAILURE() << words;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr("group profile"));
    }
  };
  refuses("{", "not JSON");
  std::string edited = text;
  edited.replace(edited.find("\"slots\": 8"), 10, "\"slots\": 9");
  refuses(edited, "checksum");
  json document = json::parse(text);
  document["version"] = 2;
  refuses(document.dump(), "format version 2");
  document["version"] = 1;
  document["format"] = "penstock-link-profile";
  refuses(document.dump(), "format");

  const auto changed = [&](const std::function<void(GroupProfile&)>& change) {
    GroupProfile profile = profile_of(hosts(kSpecs));
    change(profile);
    return profile.to_json();
  };
  refuses(changed([](auto& profile) { profile.slots = 1; }), "'slots'");
  refuses(changed([](auto& profile) { profile.chunk_bytes = 1; }), "'chunk_bytes'");
  refuses(changed([](auto& profile) { profile.fed_once = 0; }), "'fed_once'");
  refuses(changed([](auto& profile) { profile.members.clear(); }), "'members'");
  refuses(changed([](auto& profile) { profile.members[1].peers.pop_back(); }), "'peers'");
  refuses(changed([](auto& profile) { profile.members[2].peers[0] = -1; }), "'peers'");
  refuses(changed([](auto& profile) { profile.members[2].link = 0; }), "'link'");
}

class MeasuredGroupTest : public GroupTest {
 protected:
  [[nodiscard]] GroupOptions measured(double relayed, double fed_once) const {
    GroupOptions options{.threads = 2};
    options.measured = profile_of(DeviceGroup(devices_));
    options.measured->chunk_bytes = 64 * 1024;
    options.measured->slots = 2;
    for (auto& member : options.measured->members) {
      member.link = 1e9;
      member.relayed = relayed * member.link;
    }
    options.measured->fed_once = fed_once * options.measured->replicated;
    return options;
  }
  /// The members that carried a part of a transfer.
  static std::size_t carriers(const GroupEngine& engine) {
    std::size_t count = 0;
    for (const std::size_t bytes : engine.carried()) count += bytes > 0 ? 1 : 0;
    return count;
  }
};
PENSTOCK_GROUP_SUITE(MeasuredGroupTest);

TEST_P(MeasuredGroupTest, RelaysOnlyIfThatPays) {
  const auto data = random_bytes(3000000, 1);
  for (const double gain : {1.02, 2.0}) {
    GroupEngine engine(DeviceGroup(devices_), measured(gain, 2));
    // Nobody carries all before the others are awake.
    std::atomic<bool> receiver_carries{false};
    std::atomic<bool> others_carry{false};
    const auto wait_for = [](const std::atomic<bool>& carries) {
      static_cast<void>(comes_true([&] { return carries.load(); }, std::chrono::seconds(10)));
    };
    for (std::size_t i = 1; i < size(); ++i) {
      faulty_[i]->before(Entry::copy, [&] {
        others_carry = true;
        wait_for(receiver_carries);
      });
    }
    faulty_[0]->before(Entry::copy, [&] {
      receiver_carries = true;
      if (gain < 1.5) return std::this_thread::sleep_for(std::chrono::milliseconds(1));
      wait_for(others_carry);
      others_carry = true;
    });
    const Buffer there = poisoned(0, data.size());
    const Transfer transfer = engine.relay(0, there.data(), data.data(), data.size());
    streams_[0].wait(transfer);
    EXPECT_EQ(first_difference(read(0, there, data.size()), data), -1);
    EXPECT_EQ(carriers(engine) > 1, gain > 1.5);
    if (gain < 1.5) {
      EXPECT_EQ(engine.carried()[0], data.size());
    }
    for (const auto& one : faulty_) one->before(Entry::copy, {});
  }
}

TEST_P(MeasuredGroupTest, FeedsOnceOnlyIfThatPays) {
  const auto data = random_bytes(1000000, 2);
  for (const double gain : {1.0, 2.0}) {
    GroupEngine engine(DeviceGroup(devices_), measured(2, gain));
    const auto buffers = poisoned_for_all(data.size());
    expect_everywhere(engine.feed_once(places(buffers), data.data(), data.size()), buffers, data);
    const std::vector<std::size_t> carried = engine.carried();
    const std::size_t sum = std::accumulate(carried.begin(), carried.end(), std::size_t{0});
    EXPECT_EQ(sum, gain > 1 ? data.size() : size() * data.size());
    // Whoever fills is asked once in any case.
    const auto fill = [&](std::size_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), data.data() + offset, to.size());
    };
    const Transfer filled = engine.feed_once_filled(places(buffers), data.size(), fill);
    expect_everywhere(filled, buffers, data);
    const std::vector<std::size_t> all = engine.carried();
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::size_t{0}), sum + data.size());
  }
}

TEST_P(MeasuredGroupTest, TakesItsChunksFromTheProfile) {
  const auto data = random_bytes(1 << 20, 3);
  const LockedForAll locked(plain_, data);
  GroupEngine engine(DeviceGroup(devices_), measured(2, 2));
  const auto buffers = poisoned_for_all(data.size());
  std::size_t before = 0;
  for (const auto& one : faulty_) before += one->calls(Entry::copy);
  expect_everywhere(engine.feed_once(places(buffers), locked.data(), data.size()), buffers, data);
  std::size_t copies = 0;
  for (const auto& one : faulty_) copies += one->calls(Entry::copy);
  // Chunks of 64 KiB at most, each pulled once and pushed to all others.
  EXPECT_GE(copies - before, 16 * size());
}

TEST_P(MeasuredGroupTest, RefusesTheProfileOfMoreDevices) {
  GroupOptions options = measured(2, 2);
  options.measured->members.push_back(options.measured->members.back());
  EXPECT_THROW(GroupEngine(DeviceGroup(devices_), options), InvalidArgument);
}

}  // namespace
}  // namespace penstock::testing
