#include "device/cuda_fixture.hpp"
#include "support/bytes.hpp"

#include <gmock/gmock.h>

#include <optional>

namespace penstock::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kBlockBytes = 10000;
constexpr int kIllegalAddress = 700;

/// Two GPUs of the fake driver, each with a stream and a block of memory. Neither is the other's peer yet.
class CudaPeers : public CudaTest {
 protected:
  [[nodiscard]] static std::byte* block_of(const Device& device) {
    return static_cast<std::byte*>(device.allocate(kBlockBytes));
  }
  void pull() const { stream.copy(mine, theirs, kBlockBytes, CopyDirection::d2d); }
  void push() const { stream.copy(theirs, mine, kBlockBytes, CopyDirection::d2d); }
  void gather_theirs() const {
    stream.gather(
        {.source = theirs, .source_rows = 1, .row_elements = kBlockBytes, .count = 1, .destination = mine});
  }
  void upload(const Stream& on, std::byte* to) const {
    on.copy(to, bytes.data(), kBlockBytes, CopyDirection::h2d);
    on.synchronize();
  }
  [[nodiscard]] static std::vector<std::byte> download(const Stream& on, const std::byte* from) {
    std::vector<std::byte> result(kBlockBytes, kPoison);
    on.copy(result.data(), from, kBlockBytes, CopyDirection::d2h);
    return result;
  }

  void TearDown() override {
    fake.reset();
    first.deallocate(mine);
    second->deallocate(theirs);
  }

  const Device first = open("cuda:0");
  std::optional<Device> second = open("cuda:1");
  const Stream stream = first.create_stream();
  const Stream there = second->create_stream();
  std::byte* const mine = block_of(first);
  std::byte* const theirs = block_of(*second);
  const std::vector<std::byte> bytes = random_bytes(kBlockBytes, 1);
};

TEST_F(CudaPeers, ACopyWithoutAccessFailsAndTheDeviceGoesOn) {
  upload(there, theirs);
  EXPECT_EQ(device_error([&] { pull(); }).call(), "cuMemcpyDtoDAsync");
  EXPECT_EQ(device_error([&] { push(); }).call(), "cuMemcpyDtoDAsync");
  second->enable_peer(first);
  EXPECT_THROW(pull(), DeviceError) << "access goes one way";
  first.enable_peer(*second);
  pull();
  EXPECT_EQ(first_difference(bytes, download(stream, mine)), -1);
}

TEST_F(CudaPeers, AKernelReadsThePeersMemoryOnlyWithAccess) {
  upload(there, theirs);
  first.enable_peer(*second);
  gather_theirs();
  EXPECT_EQ(first_difference(bytes, download(stream, mine)), -1);
  const Device third = open("cuda:0");  // the same GPU has the same access
  const Stream other = third.create_stream();
  other.copy(mine, theirs, kBlockBytes, CopyDirection::d2d);
  other.synchronize();
}

TEST_F(CudaPeers, AKernelThatReadsThePeersMemoryWithoutAccessFaults) {
  gather_theirs();
  EXPECT_EQ(device_error([&] { stream.synchronize(); }).code(), kIllegalAddress);
  there.synchronize();
}

TEST_F(CudaPeers, GpusWithoutALinkSayWhich) {
  fake.set_peer_access(0);
  EXPECT_FALSE(first.can_reach(*second));
  EXPECT_TRUE(first.can_reach(open("cuda:0")));
  first.enable_peer(open("cuda:0"));
  EXPECT_EQ(fake.calls("cuCtxEnablePeerAccess"), 0);
  try {
    first.enable_peer(*second);
    ADD_FAILURE() << "enabled";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cuda:0"), HasSubstr("cuda:1"), HasSubstr("host memory")));
  }
  EXPECT_EQ(fake.calls("cuCtxEnablePeerAccess"), 0);
}

TEST_F(CudaPeers, AccessThatAnotherLibraryEnabledIsUsed) {
  using Call = int (*)(void*);
  void* other = nullptr;
  void* context = nullptr;
  const auto retain = fake.entry<int (*)(void**, int)>("cuDevicePrimaryCtxRetain");
  const auto release = fake.entry<int (*)(int)>("cuDevicePrimaryCtxRelease");
  ASSERT_EQ(retain(&context, 0), 0);
  ASSERT_EQ(retain(&other, 1), 0);
  fake.entry<Call>("cuCtxPushCurrent")(context);
  const auto enable = fake.entry<int (*)(void*, unsigned)>("cuCtxEnablePeerAccess");
  constexpr int kInvalidContext = 201;
  constexpr int kAlreadyEnabled = 704;
  EXPECT_EQ(enable(context, 0), kInvalidContext);
  EXPECT_EQ(enable(other, 0), 0);
  EXPECT_EQ(enable(other, 0), kAlreadyEnabled);
  fake.entry<int (*)(void**)>("cuCtxPopCurrent")(&context);
  release(0);
  release(1);
  upload(there, theirs);
  first.enable_peer(*second);
  pull();
  EXPECT_EQ(first_difference(bytes, download(stream, mine)), -1);
}

TEST_F(CudaPeers, AFailedCopyBetweenGpusIsThatOfItsStreamsDevice) {
  first.enable_peer(*second);
  upload(there, theirs);
  Event done = first.create_event();
  fake.fail_work("cuMemcpyDtoDAsync", 1, kIllegalAddress);
  pull();
  EXPECT_EQ(device_error([&] { stream.synchronize(); }).code(), kIllegalAddress);
  EXPECT_THROW(done.record(stream), DeviceError);
  EXPECT_EQ(first_difference(bytes, download(there, theirs)), -1);
}

TEST_F(CudaPeers, ARefusalOfTheDriverIsAnErrorWithItsName) {
  constexpr int kTooManyPeers = 711;
  constexpr int kInvalidDevice = 101;
  for (const char* function : {"cuDeviceGet", "cuDeviceCanAccessPeer"}) {
    fake.fail(function, 1, kInvalidDevice);
    const DeviceError error = device_error([&] { static_cast<void>(first.can_reach(*second)); });
    EXPECT_EQ(error.code(), kInvalidDevice);
    EXPECT_EQ(error.call(), function);
  }
  fake.fail("cuCtxEnablePeerAccess", 1, kTooManyPeers);
  const DeviceError error = device_error([&] { first.enable_peer(*second); });
  EXPECT_EQ(error.code(), kTooManyPeers);
  EXPECT_EQ(error.call(), "cuCtxEnablePeerAccess");
  first.enable_peer(*second);
}

}  // namespace

}  // namespace penstock::testing
