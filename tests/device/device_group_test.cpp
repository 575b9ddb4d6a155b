#include "device/contract_suite.hpp"
#include "device/cuda_fixture.hpp"
#include "device/shared/trial_bytes.hpp"
#include "support/faulty_backend.hpp"
#include "support/wrong_bytes_backend.hpp"

#include <penstock/device/device_group.hpp>

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal_of(std::vector<Device> members) {
  try {
    static_cast<void>(DeviceGroup(std::move(members)));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DeviceGroups, MembersReachEachOther) {
  std::optional<DeviceGroup> made(
      std::in_place,
      std::vector<Device>{Device::open("host:0"), Device::open("host:1"), Device::open("host:2")});
  const DeviceGroup group = *made;
  made.reset();  // a copy is as good
  ASSERT_EQ(group.size(), 3u);
  EXPECT_EQ(group[2].info().spec, "host:2");
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(group.unreached(), IsEmpty());
  constexpr std::size_t kBytes = 1000;
  const auto data = random_bytes(kBytes, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    const Stream stream = group[i].create_stream();
    DeviceBytes here(group[i], kBytes);
    stream.copy(here.data(), data.data(), kBytes, CopyDirection::h2d);
    for (std::size_t j = 0; j < 3; ++j) {
      EXPECT_TRUE(group.reaches(i, j));
      DeviceBytes there(group[j], kBytes);
      stream.copy(there.data(), here.data(), kBytes, CopyDirection::d2d);
      stream.synchronize();
      EXPECT_TRUE(same_bytes(data, {there.data(), kBytes}));
    }
  }
}

TEST(DeviceGroups, OneDeviceIsAGroup) {
  const DeviceGroup group({Device::open("host")});
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0)));
  EXPECT_TRUE(group.reaches(0, 0));
}

TEST(DeviceGroups, RefusesWhatCannotBeOne) {
  const Device host = Device::open("host");
  EXPECT_THAT(refusal_of({}), HasSubstr("needs a device"));
  EXPECT_THAT(refusal_of({host, Device::open("host:1"), host}), AllOf(HasSubstr("host"), HasSubstr("twice")));
  const Device wrapped(std::make_shared<FaultyBackend>(host.shared_backend()));
  EXPECT_THAT(refusal_of({host, wrapped}), HasSubstr("twice"));
#ifdef PENSTOCK_FAKE_DRIVER
  const Device gpu = Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER});
  EXPECT_THAT(refusal_of({host, gpu}), AllOf(HasSubstr("host"), HasSubstr("cuda:0"), HasSubstr("GPUs only")));
  EXPECT_THAT(refusal_of({gpu, Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER})}),
              HasSubstr("twice"));
#endif
}

TEST(DeviceGroups, ACliqueIsOfMembersThatAllReachEachOther) {
  const DeviceGroup group({Device::open("host:0"), Device::open("host:1,late=1"), Device::open("host:2"),
                           Device::open("host:3,late=1")});
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_TRUE(group.reaches(0, 2));
  EXPECT_FALSE(group.reaches(0, 1));
  EXPECT_FALSE(group.reaches(1, 0));
  ASSERT_EQ(group.unreached().size(), 4u);
  EXPECT_THAT(group.unreached().front(), AllOf(HasSubstr("host and host:1,late=1 do not reach"),
                                               HasSubstr("over its own link"), HasSubstr("topo -p2p")));
}

// The device in the middle reaches both others, which do not reach each other.
TEST(DeviceGroups, ACliqueIsNotAChain) {
  struct Chain {
    std::shared_ptr<FaultyBackend> backend;
    explicit Chain(const std::string& spec)
        : backend(std::make_shared<FaultyBackend>(Device::open(spec).shared_backend())) {}
  };
  Chain first("host:0");
  Chain middle("host:1");
  Chain last("host:2");
  // It asks for pairs (1, 0), (2, 0), (2, 1), each both ways.
  last.backend->fail(Entry::enable_peer, 1);
  const DeviceGroup group({Device(first.backend), Device(middle.backend), Device(last.backend)});
  EXPECT_FALSE(group.reaches(2, 0));
  EXPECT_TRUE(group.reaches(2, 1));
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

using Harm = WrongBytesBackend::Harm;

/// Three devices. What the first writes to the last arrives wrong.
std::vector<Device> with_a_wrong_pair(const std::function<Device(int)>& open, Harm harm) {
  const Device last = open(2);
  const auto first = std::make_shared<WrongBytesBackend>(open(0).shared_backend());
  first->harms_d2d = [last, harm](const void* destination, const void* /*source*/) {
    return last.owns(destination) ? harm : Harm::none;
  };
  return {Device(first), open(1), last};
}

void expect_one_wrong_pair(const DeviceGroup& group) {
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(group.reaches(i, j), i != 0 || j != 2) << i << j;
  }
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  const std::string first = group[0].info().spec;
  const std::string last = group[2].info().spec;
  EXPECT_THAT(group.unreached(),
              ElementsAre(AllOf(HasSubstr(first + " and " + last),
                                HasSubstr("that " + first + " copied to " + last + " arrived wrong"),
                                HasSubstr("over its own link"), HasSubstr("IOMMU"))));
}

TEST(DeviceGroups, APairWithWrongBytesIsUnreached) {
  for (const std::string options : {"", ",late=1", ",link=1,peer=1"}) {
    const auto open = [&](int i) { return Device::open("host:" + std::to_string(i) + options); };
    for (const Harm harm : {Harm::change, Harm::drop}) {
      expect_one_wrong_pair(DeviceGroup(with_a_wrong_pair(open, harm)));
    }
    EXPECT_THAT(DeviceGroup(with_a_wrong_pair(open, Harm::none)).unreached(), IsEmpty()) << options;
  }
}

TEST(DeviceGroups, EachPairIsTriedOnceAndNothingStays) {
  std::vector<std::shared_ptr<FaultyBackend>> backends;
  std::vector<Device> devices;
  for (int i = 0; i < 3; ++i) {
    backends.push_back(
        std::make_shared<FaultyBackend>(Device::open("host:" + std::to_string(i)).shared_backend()));
    devices.emplace_back(backends.back());
  }
  const DeviceGroup group(devices);
  for (const auto& backend : backends) {
    EXPECT_EQ(backend->copied_bytes(CopyDirection::d2d), 2 * kTrialBytes);
    EXPECT_EQ(backend->live(), LiveHandles{});
  }
}

TEST(DeviceGroups, APairThatCannotBeTriedIsUnreached) {
  const DeviceGroup group(
      {Device::open("host:0"), Device::open("host:1,memory=512KiB"), Device::open("host:2")});
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
  ASSERT_EQ(group.unreached().size(), 2u);
  EXPECT_THAT(group.unreached().front(), AllOf(HasSubstr("cannot be tried"), HasSubstr("Free memory")));
}

TEST(DeviceGroups, AFailureOfATrialIsPassedOnAfterTheCopiesThatAreUnderWay) {
  using Pair = std::array<std::shared_ptr<FaultyBackend>, 2>;
  const Pair pair{std::make_shared<FaultyBackend>(Device::open("host:0,peer=0.01").shared_backend()),
                  std::make_shared<FaultyBackend>(Device::open("host:1").shared_backend())};
  std::array<std::size_t, 2> waits{};
  const auto count = [&](std::size_t i) { return pair[i]->calls(Entry::stream_synchronize); };
  pair[1]->fail(Entry::copy, 2, 1, [&] {  // the first member copies meanwhile
    waits = {count(0), count(1)};
    throw DeviceError("PENSTOCK_INJECTED", "copy", 999, "A test asked for this failure.");
  });
  int freed = 0;
  for (const auto& backend : pair) {
    backend->before(Entry::device_free, [&] {
      ++freed;
      for (std::size_t i = 0; i < 2; ++i) EXPECT_GT(count(i), waits[i]);
    });
  }
  EXPECT_THROW(DeviceGroup({Device(pair[0]), Device(pair[1])}), DeviceError);
  EXPECT_EQ(freed, 2);
  for (const auto& backend : pair) EXPECT_EQ(backend->live(), LiveHandles{});
}

TEST(TrialBytes, AreOthersForEachSeed) {
  const std::uint64_t seed = trial_seed();
  EXPECT_NE(seed, trial_seed());
  const std::vector<std::byte> bytes = trial_bytes(1003, seed);
  EXPECT_EQ(first_difference(bytes, trial_bytes(1003, seed)), -1);
  EXPECT_NE(first_difference(bytes, trial_bytes(1003, seed + 1)), -1);
  EXPECT_EQ(first_difference(std::span(bytes).first(1001), trial_bytes(1001, seed)), -1);
}

class DeviceGroupsOfGpus : public CudaTest {};

TEST_F(DeviceGroupsOfGpus, APairWithWrongBytesIsUnreached) {
  fake.set_devices(3);
  expect_one_wrong_pair(
      DeviceGroup(with_a_wrong_pair([](int i) { return open("cuda:" + std::to_string(i)); }, Harm::drop)));
}

TEST_F(DeviceGroupsOfGpus, PeersAreEnabledOnce) {
  const DeviceGroup group({open("cuda:0"), open("cuda:1")});
  EXPECT_EQ(fake.calls("cuCtxEnablePeerAccess"), 2);
  const DeviceGroup again = group;
  EXPECT_THAT(again.cliques(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(fake.calls("cuCtxEnablePeerAccess"), 2);
}

TEST_F(DeviceGroupsOfGpus, WithoutALinkEachStandsAlone) {
  fake.set_peer_access(0);
  const DeviceGroup group({open("cuda:0"), open("cuda:1")});
  EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0), ElementsAre(1)));
  ASSERT_EQ(group.unreached().size(), 1u);
  EXPECT_THAT(group.unreached().front(), AllOf(HasSubstr("cuda:0 and cuda:1"), HasSubstr("container")));
  EXPECT_EQ(fake.calls("cuCtxEnablePeerAccess"), 0);
}

TEST_F(DeviceGroupsOfGpus, ARefusalOfTheDriverIsNoError) {
  constexpr int kTooManyPeers = 711;
  for (const long nth : {1, 2}) {
    const Device first = open("cuda:0");
    const Device second = open("cuda:1");
    fake.fail("cuCtxEnablePeerAccess", nth, kTooManyPeers);
    const DeviceGroup group({first, second});
    EXPECT_EQ(group.reaches(1, 0), nth == 2);
    EXPECT_EQ(group.reaches(0, 1), nth == 1);
    EXPECT_THAT(group.cliques(), ElementsAre(ElementsAre(0), ElementsAre(1)));
    ASSERT_EQ(group.unreached().size(), 1u);
    EXPECT_THAT(group.unreached().front(), HasSubstr("cuCtxEnablePeerAccess"));
  }
}

}  // namespace
}  // namespace penstock::testing
