#include "device/contract_suite.hpp"

#include <gmock/gmock.h>

#include <optional>

/// What the host device refuses of peers, and what a GPU's driver cannot be asked.
namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kPeerBytes = 10000;

class HostPeers : public ::testing::Test {
 protected:
  const Device first = Device::open("host:0,memory=4MiB");
  const Device second = Device::open("host:1,memory=8MiB");
  const Stream stream = first.create_stream();
  const Stream there = second.create_stream();
  const std::vector<std::byte> bytes = random_bytes(kPeerBytes, 1);
  DeviceBytes mine{first, kPeerBytes};
  DeviceBytes theirs{second, kPeerBytes};

  [[nodiscard]] static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(HostPeers, EachOpenDeviceHasItsOwnBudget) {
  const Device again = Device::open("host:1,memory=8MiB");
  const std::size_t before = again.memory().free;
  EXPECT_EQ(second.memory().total, std::size_t{8} << 20);
  EXPECT_EQ(second.memory().free, second.memory().total - kPeerBytes);
  EXPECT_EQ(before, again.memory().total);
  const DeviceBytes most(first, (std::size_t{4} << 20) - kPeerBytes);
  EXPECT_EQ(first.memory().free, 0u);
  EXPECT_THROW(static_cast<void>(first.allocate(1)), OutOfMemory);
  EXPECT_EQ(second.memory().free, second.memory().total - kPeerBytes);
  EXPECT_EQ(again.memory().free, before);
}

TEST_F(HostPeers, ACopyWithoutAccessIsRefusedAndSaysWhatToDo) {
  const auto pull = [&] { stream.copy(mine.data(), theirs.data(), kPeerBytes, CopyDirection::d2d); };
  const auto push = [&] { stream.copy(theirs.data(), mine.data(), kPeerBytes, CopyDirection::d2d); };
  EXPECT_THAT(refusal(pull), HasSubstr("enable_peer"));
  EXPECT_THAT(refusal(push), HasSubstr("enable_peer"));
  second.enable_peer(first);
  EXPECT_THAT(refusal(pull), HasSubstr("enable_peer")) << "access goes one way";
  first.enable_peer(second);
  EXPECT_EQ(refusal(pull), "accepted");
  EXPECT_EQ(refusal(push), "accepted");
  stream.synchronize();
}

TEST_F(HostPeers, MemoryOfAnEnabledPeerIsDeviceMemory) {
  EXPECT_EQ(first.kind_of(theirs.data()), MemoryKind::pageable);
  first.enable_peer(second);
  EXPECT_EQ(first.kind_of(theirs.data()), MemoryKind::device);
  EXPECT_EQ(first.kind_of(theirs.data() + kPeerBytes - 1), MemoryKind::device);
  EXPECT_EQ(second.kind_of(mine.data()), MemoryKind::pageable);
  PinnedBytes locked(second, 64);
  EXPECT_EQ(first.kind_of(locked.data()), MemoryKind::pageable) << "it is locked for the other device";
}

TEST_F(HostPeers, OnlyCopiesBetweenDevicesNameTheMemoryOfAPeer) {
  first.enable_peer(second);
  PinnedBytes locked(first, kPeerBytes);
  EXPECT_THROW(stream.copy(theirs.data(), locked.data(), kPeerBytes, CopyDirection::h2d), DeviceError);
  EXPECT_THROW(stream.copy(locked.data(), theirs.data(), kPeerBytes, CopyDirection::d2h), DeviceError);
  EXPECT_THROW(stream.fill(theirs.data(), 1, kPeerBytes), DeviceError);
  EXPECT_THROW(stream.gather({.source = theirs.data(),
                              .source_rows = 1,
                              .row_elements = 1,
                              .count = 1,
                              .destination = mine.data()}),
               DeviceError);
  stream.synchronize();
}

TEST_F(HostPeers, CopiesStayInsideTheMemoryOfThePeer) {
  first.enable_peer(second);
  EXPECT_THROW(stream.copy(mine.data(), theirs.data() + 1, kPeerBytes, CopyDirection::d2d), DeviceError);
  EXPECT_THROW(stream.copy(theirs.data() + 1, mine.data(), kPeerBytes, CopyDirection::d2d), DeviceError);
}

TEST_F(HostPeers, ThreeDevicesCopyFromAnyToAny) {
  const Device third = Device::open("host:2,memory=1MiB");
  DeviceBytes last(third, kPeerBytes);
  first.enable_peer(second);
  first.enable_peer(third);
  there.copy(theirs.data(), bytes.data(), kPeerBytes, CopyDirection::h2d);
  there.synchronize();
  stream.copy(last.data(), theirs.data(), kPeerBytes, CopyDirection::d2d);
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, {last.data(), kPeerBytes}));
}

TEST_F(HostPeers, DevicesThatCannotReachEachOtherSayWhich) {
  const Device late = Device::open("host:3,late=1");
  EXPECT_FALSE(first.can_reach(late));
  EXPECT_FALSE(late.can_reach(first));
  EXPECT_THROW(first.enable_peer(late), Unsupported);
  EXPECT_THAT(refusal([&] { first.enable_peer(late); }),
              AllOf(HasSubstr(first.info().spec), HasSubstr("host:3,late=1"), HasSubstr("host memory")));
#ifdef PENSTOCK_FAKE_DRIVER
  const Device gpu = Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER});
  EXPECT_FALSE(first.can_reach(gpu));
  EXPECT_FALSE(gpu.can_reach(first));
  EXPECT_THROW(gpu.enable_peer(first), Unsupported);
  EXPECT_THROW(first.enable_peer(gpu), Unsupported);
#endif
}

TEST_F(HostPeers, PeersKeepNeitherOpen) {
  std::weak_ptr<Backend> watched;
  const std::byte* old = nullptr;
  {
    std::optional<Device> brief(Device::open("host:2,memory=1MiB"));
    const DeviceBytes gone(*brief, kPeerBytes);
    brief->enable_peer(first);
    first.enable_peer(*brief);
    old = gone.data();
    EXPECT_EQ(first.kind_of(old), MemoryKind::device);
    watched = brief->shared_backend();
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_NE(first.kind_of(old), MemoryKind::device);
}

TEST_F(HostPeers, TheSlowerOfTwoModelledLinksSetsTheTime) {
  constexpr std::size_t kMany = 1000000;
  const Device slow = Device::open("host:0,memory=4MiB,peer=0.1");
  const Device fast = Device::open("host:1,memory=4MiB,peer=1000");
  slow.enable_peer(fast);
  fast.enable_peer(slow);
  DeviceBytes here(slow, kMany);
  DeviceBytes other(fast, kMany);
  const auto seconds = [&](const Device& device, std::byte* to, const std::byte* from) {
    const Stream on = device.create_stream();
    Event begin = device.create_event(EventTiming::on);
    Event end = device.create_event(EventTiming::on);
    begin.record(on);
    on.copy(to, from, kMany, CopyDirection::d2d);
    end.record(on);
    end.synchronize();
    return end.seconds_since(begin);
  };
  // At least what the model says; a busy machine only adds to it.
  EXPECT_GE(seconds(slow, other.data(), here.data()), 0.0099);
  EXPECT_GE(seconds(slow, here.data(), other.data()), 0.0099);
  EXPECT_GE(seconds(fast, other.data(), here.data()), 0.0099);
  EXPECT_GE(seconds(fast, here.data(), other.data()), 0.0099);
}

}  // namespace
}  // namespace penstock::testing
