#include "device/shared/peer_memory.hpp"

#include "device/contract_suite.hpp"
#include "device/cuda_fixture.hpp"
#include "device/shared/mapping.hpp"
#include "support/device_cases.hpp"
#include "support/fork.hpp"
#include "support/other_process.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>

/// Memory of another process, on every device.
namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMemoryBytes = 3'000'000;
constexpr std::size_t kOffset = 1'000'000;
constexpr std::size_t kRest = kMemoryBytes - kOffset;

constexpr std::size_t kSmallBytes = 64 * 1024;

/// name_small: two allocations that are small enough to lie in one piece of the driver's memory.
enum class Order : int { rewrite, free, replace, name, name_small, end };

void write(const Device& device, std::byte* to, std::uint64_t seed, std::size_t size = kMemoryBytes) {
  const Stream stream = device.create_stream();
  const std::vector<std::byte> bytes = random_bytes(size, seed);
  stream.copy(to, bytes.data(), size, CopyDirection::h2d);
  stream.synchronize();
}

/// The other process: has memory on the device of its argument, and does as it is told.
TEST(OtherSide, DISABLED_Exporter) {
  const Talk starter = OtherProcess::starter();
  const Device device = open_for_tests(OtherProcess::argument());
  auto* memory = static_cast<std::byte*>(device.allocate_shared(kMemoryBytes));
  write(device, memory, 1);
  std::vector<std::byte*> small;
  for (;;) {
    switch (starter.receive<Order>()) {
      case Order::rewrite:
        write(device, memory, 2);
        break;
      case Order::free:
        device.deallocate(memory);
        break;
      case Order::replace:
        device.deallocate(memory);
        memory = static_cast<std::byte*>(device.allocate_shared(kMemoryBytes));
        static_cast<void>(name_memory(device, memory));
        break;
      case Order::name:
        starter.send(name_memory(device, memory + kOffset));
        break;
      case Order::name_small:
        for (const std::uint64_t seed : {3, 4}) {
          small.push_back(static_cast<std::byte*>(device.allocate_shared(kSmallBytes)));
          write(device, small.back(), seed, kSmallBytes);
        }
        for (const std::byte* each : small) starter.send(name_memory(device, each));
        break;
      case Order::end:
        for (std::byte* each : small) device.deallocate(each);
        device.deallocate(memory);
        return;
    }
    starter.send(0);
  }
}

struct Places {
  std::string name;
  std::string mine;
  std::string theirs;
};
void PrintTo(const Places& places, std::ostream* out) { *out << places.name; }

class PeerMemoryTest : public ::testing::TestWithParam<Places> {
 protected:
  void SetUp() override {
    if (is_missing()) GTEST_SKIP() << missing_gpus();
    other.emplace("OtherSide.DISABLED_Exporter", GetParam().theirs);
  }
  [[nodiscard]] PeerMemoryHandle ask_name() {
    other->send(Order::name);
    const auto handle = other->receive<PeerMemoryHandle>();
    static_cast<void>(other->receive<int>());
    return handle;
  }
  void order(Order order) {
    other->send(order);
    static_cast<void>(other->receive<int>());
  }
  /// The bytes at `from`, by way of this device's memory.
  [[nodiscard]] std::vector<std::byte> pull(const std::byte* from, std::size_t bytes) const {
    const DeviceBytes mine(device, bytes);
    const Stream stream = device.create_stream();
    std::vector<std::byte> result(bytes, kPoison);
    stream.copy(mine.data(), from, bytes, CopyDirection::d2d);
    stream.copy(result.data(), mine.data(), bytes, CopyDirection::d2h);
    stream.synchronize();
    return result;
  }
  [[nodiscard]] static std::vector<std::byte> expected(std::uint64_t seed) {
    std::vector<std::byte> bytes = random_bytes(kMemoryBytes, seed);
    bytes.erase(bytes.begin(), bytes.begin() + kOffset);
    return bytes;
  }
  [[nodiscard]] static bool is_fake() { return GetParam().mine.starts_with("cuda"); }
  /// A real one, whose driver promises less than the tests' own.
  [[nodiscard]] static bool is_gpu() { return GetParam().mine.starts_with("gpu"); }
  [[nodiscard]] static bool is_missing() { return is_gpu() && !missing_gpus().empty(); }
  /// The allocations of other processes that the fake driver has open; 0 for other devices.
  [[nodiscard]] static long opened() {
    return is_fake() ? FakeCuda(PENSTOCK_FAKE_DRIVER).opened_memory() : 0;
  }
  /// A GPU's driver may round up what was allocated.
  static void expect_size(std::uint64_t bytes, std::uint64_t wanted) {
    EXPECT_GE(bytes, wanted);
    EXPECT_TRUE(is_gpu() || bytes == wanted) << bytes;
  }

  const Device device = open_for_tests(is_missing() ? "host" : GetParam().mine);
  std::optional<OtherProcess> other;
};

/// What only host devices and the tests' driver promise.
class NamedMemoryTest : public PeerMemoryTest {};

TEST_P(PeerMemoryTest, HasTheBytesOfTheOtherProcess) {
  const PeerMemory memory(device, ask_name());
  expect_size(memory.bytes(), kRest);
  EXPECT_EQ(device.kind_of(memory.data()), MemoryKind::device);
  EXPECT_EQ(first_difference(pull(memory.data(), kRest), expected(1)), -1);
  order(Order::rewrite);
  EXPECT_EQ(first_difference(pull(memory.data(), kRest), expected(2)), -1);
  EXPECT_TRUE(is_gpu() || device.owns(memory.data()) == (GetParam().mine == GetParam().theirs));
}

TEST_P(PeerMemoryTest, StaysIfTheOtherProcessIsKilled) {
  const PeerMemory memory(device, ask_name());
  other->kill();
  EXPECT_FALSE(other->wait());
  const std::vector<std::byte> bytes = pull(memory.data(), kRest);
  // A GPU may be read without a fault. Whose bytes these are then, its driver does not say.
  EXPECT_TRUE(is_gpu() || first_difference(bytes, expected(1)) == -1);
}

TEST_P(PeerMemoryTest, OfAProcessThatHasEndedIsNotMapped) {
  const PeerMemoryHandle handle = ask_name();
  other->kill();
  EXPECT_FALSE(other->wait());
  EXPECT_THROW(PeerMemory(device, handle), Error);
}

TEST_P(NamedMemoryTest, ThatWasFreedIsNotMapped) {
  const PeerMemoryHandle handle = ask_name();
  order(Order::replace);  // by memory whose file has the same number
  EXPECT_THROW(PeerMemory(device, handle), DeviceError);
  order(Order::free);
  EXPECT_THROW(PeerMemory(device, handle), DeviceError);
}

TEST_P(PeerMemoryTest, IsUnmappedOnce) {
  const PeerMemoryHandle handle = ask_name();
  std::optional<PeerMemory> stays(std::in_place, device, handle);
  {
    std::optional<PeerMemory> first(std::in_place, device, handle);
    PeerMemory second(device, handle);
    PeerMemory moved(std::move(second));
    first.reset();
    EXPECT_EQ(first_difference(pull(moved.data(), kRest), expected(1)), -1);
    second = std::move(moved);
    EXPECT_EQ(first_difference(pull(second.data(), kRest), expected(1)), -1);
  }
  EXPECT_EQ(opened(), is_fake() ? 1 : 0);
  EXPECT_EQ(first_difference(pull(stays->data(), kRest), expected(1)), -1);
  stays.reset();
  EXPECT_EQ(opened(), 0);
  const PeerMemory again(device, handle);
  const std::byte* const data = again.data();
  EXPECT_EQ(device.kind_of(data), MemoryKind::device);
}

TEST_P(PeerMemoryTest, OfSmallAllocationsIsUnmappedEachByItself) {
  other->send(Order::name_small);
  const auto first = other->receive<PeerMemoryHandle>();
  const auto second = other->receive<PeerMemoryHandle>();
  static_cast<void>(other->receive<int>());
  const auto expect_bytes = [&](const PeerMemory& memory, std::uint64_t seed) {
    expect_size(memory.bytes(), kSmallBytes);
    EXPECT_EQ(first_difference(pull(memory.data(), kSmallBytes), random_bytes(kSmallBytes, seed)), -1);
  };
  std::optional<PeerMemory> closed(std::in_place, device, first);
  const PeerMemory stays(device, second);
  expect_bytes(*closed, 3);
  expect_bytes(stays, 4);
  closed.reset();
  expect_bytes(stays, 4);
  const PeerMemory again(device, first);
  expect_bytes(again, 3);
  expect_bytes(stays, 4);
}

TEST_P(PeerMemoryTest, IsUnmappedAfterTheWorkThatReadsIt) {
  std::optional<PeerMemory> memory(std::in_place, device, ask_name());
  const DeviceBytes mine(device, kRest);
  const Stream stream = device.create_stream();
  stream.occupy(0.05);
  stream.copy(mine.data(), memory->data(), kRest, CopyDirection::d2d);
  memory.reset();
  std::vector<std::byte> result(kRest, kPoison);
  stream.copy(result.data(), mine.data(), kRest, CopyDirection::d2h);
  stream.synchronize();
  EXPECT_EQ(first_difference(result, expected(1)), -1);
}

TEST_P(PeerMemoryTest, OfThisProcessIsRefused) {
  auto* const mine = static_cast<std::byte*>(device.allocate_shared(kMemoryBytes));
  const PeerMemoryHandle handle = name_memory(device, mine + 5);
  EXPECT_EQ(handle.offset, 5u);
  expect_size(handle.bytes, kMemoryBytes - 5);
  EXPECT_THROW(PeerMemory(device, handle), Unsupported);
  device.deallocate(mine);
}

TEST_P(PeerMemoryTest, OnlyDeviceMemoryHasAName) {
  const PinnedBytes pinned(device, 100);
  const std::vector<std::byte> pageable(100);
  EXPECT_THROW(static_cast<void>(name_memory(device, pinned.data())), InvalidArgument);
  EXPECT_THROW(static_cast<void>(name_memory(device, pageable.data())), InvalidArgument);
}

TEST_P(NamedMemoryTest, OfAnotherProcessHasNoNameHere) {
  const PeerMemory theirs(device, ask_name());
  EXPECT_THROW(static_cast<void>(name_memory(device, theirs.data())), Error);
}

TEST_P(NamedMemoryTest, IsCountedAsOtherMemoryIs) {
  const std::size_t free = device.memory().free;
  void* const memory = device.allocate_shared(kMemoryBytes);
  EXPECT_EQ(device.memory().free, free - kMemoryBytes);
  device.deallocate(memory);
  EXPECT_EQ(device.memory().free, free);
}

TEST_P(PeerMemoryTest, SharedMemoryIsLikeOther) {
  void* const memory = device.allocate_shared(kMemoryBytes);
  EXPECT_TRUE(device.owns(memory));
  write(device, static_cast<std::byte*>(memory), 3);
  static_cast<void>(name_memory(device, memory));  // which keeps the bytes
  EXPECT_EQ(
      first_difference(pull(static_cast<std::byte*>(memory), kMemoryBytes), random_bytes(kMemoryBytes, 3)),
      -1);
  device.deallocate(memory);
  EXPECT_THROW(static_cast<void>(device.allocate_shared(std::size_t{1} << 60)), OutOfMemory);
}

std::size_t open_files() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                std::filesystem::directory_iterator()));
}

TEST_P(NamedMemoryTest, LeavesNoFilesOpen) {
  const PeerMemoryHandle handle = ask_name();
  const std::size_t before = open_files();
  for (int i = 0; i < 3; ++i) {
    const PeerMemory memory(device, handle);
    void* const mine = device.allocate_shared(kMemoryBytes);
    static_cast<void>(name_memory(device, mine));
    device.deallocate(mine);
  }
  EXPECT_EQ(open_files(), before);
}

const auto kPlaces =
    ::testing::Values(Places{"Host", "host:0,memory=64MiB", "host:1,memory=64MiB"},
                      Places{"HostLate", "host:memory=64MiB,late=1", "host:1,memory=64MiB,late=1"},
                      Places{"HostLinks", "host:memory=64MiB,peer=1", "host:1,memory=64MiB,peer=0.1"},
                      Places{"FakeCuda", "cuda:0", "cuda:1"}, Places{"FakeCudaOneGpu", "cuda:0", "cuda:0"});

INSTANTIATE_TEST_SUITE_P(Devices, NamedMemoryTest, kPlaces, [](const auto& each) { return each.param.name; });
INSTANTIATE_TEST_SUITE_P(Devices, PeerMemoryTest, kPlaces, [](const auto& each) { return each.param.name; });
INSTANTIATE_TEST_SUITE_P(Cuda, PeerMemoryTest,
                         ::testing::Values(Places{"Gpus", "gpu:0", "gpu:1"},
                                           Places{"OneGpu", "gpu:0", "gpu:0"}),
                         [](const auto& each) { return each.param.name; });

template <typename Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

struct HostPeerMemoryTest : ::testing::Test {
  const Device device = Device::open("host:memory=16MiB");
  OtherProcess other{"OtherSide.DISABLED_Exporter", "host:1,memory=16MiB"};

  [[nodiscard]] PeerMemoryHandle name() const {
    other.send(Order::name);
    return other.receive<PeerMemoryHandle>();
  }
};

TEST_F(HostPeerMemoryTest, MayOnlyBeReadAndNotPastItsEnd) {
  const PeerMemory memory(device, name());
  const DeviceBytes mine(device, kMemoryBytes);
  const Stream stream = device.create_stream();
  auto* const there = const_cast<std::byte*>(memory.data());
  EXPECT_THAT(refusal([&] { stream.copy(there, mine.data(), 1, CopyDirection::d2d); }),
              HasSubstr("another process"));
  EXPECT_THAT(refusal([&] { stream.copy(there, mine.data(), 1, CopyDirection::h2d); }), HasSubstr("copy"));
  EXPECT_THROW(stream.copy(mine.data(), there + 1, kMemoryBytes, CopyDirection::d2d), DeviceError);
  std::byte byte{};
  EXPECT_THROW(stream.copy(&byte, there, 1, CopyDirection::d2h), DeviceError);
}

TEST_F(HostPeerMemoryTest, OfALateDeviceIsRefusedByOneThatIsNot) {
  const Device late = Device::open("host:memory=16MiB,late=1");
  EXPECT_THAT(refusal([&] { PeerMemory(late, name()); }), HasSubstr("late"));
}

TEST_F(HostPeerMemoryTest, WrongNamesAreRefused) {
  PeerMemoryHandle handle = name();
  ++handle.bytes;
  handle.bytes += 4096;
  EXPECT_THROW(PeerMemory(device, handle), InvalidArgument);
  handle.bytes = 1;
  handle.offset = ~std::uint64_t{0};
  EXPECT_THROW(PeerMemory(device, handle), InvalidArgument);
  handle.native[0] ^= std::byte{1};
  EXPECT_THROW(PeerMemory(device, handle), Unsupported);
}

TEST_F(HostPeerMemoryTest, OrdinaryMemoryIsNotNamed) {
  const DeviceBytes mine(device, kMemoryBytes);
  EXPECT_THAT(refusal([&] { static_cast<void>(name_memory(device, mine.data())); }),
              HasSubstr("allocate_shared"));
}

TEST_F(HostPeerMemoryTest, AForkedChildDoesNotHaveSharedMemory) {
  void* const memory = device.allocate_shared(kMemoryBytes);
  EXPECT_TRUE(inspect_mapping(memory, kMemoryBytes).readable);
  EXPECT_TRUE(succeeds_in_child([&] { return !inspect_mapping(memory, kMemoryBytes).readable; }));
  EXPECT_TRUE(succeeds_in_child(
      [&] { return says_forked([&] { static_cast<void>(name_memory(device, memory)); }); }));
  EXPECT_TRUE(succeeds_in_child([&] { return says_forked([&] { PeerMemory(device, {}); }); }));
  device.deallocate(memory);
}

TEST(HostSharedMemory, AForkedChildUnmapsNothingOfItsOwn) {
  auto device = std::make_unique<Device>(Device::open("host:memory=16MiB"));
  void* const memory = device->allocate_shared(kMemoryBytes);
  EXPECT_TRUE(succeeds_in_child([&] {
    void* const own =
        mmap(memory, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    device.reset();
    return inspect_mapping(own, kMemoryBytes).readable;
  }));
  device->deallocate(memory);
}

class CudaPeerMemory : public CudaTest {};

TEST_F(CudaPeerMemory, WhatTheDriverCannotNameIsUnsupported) {
  const Device device = open();
  void* const memory = device.allocate_shared(kMemoryBytes);
  fake.fail("cuIpcGetMemHandle", 1, 1);
  EXPECT_THAT(refusal([&] { static_cast<void>(name_memory(device, memory)); }), HasSubstr("cuMemAlloc"));
  fake.fail("cuIpcGetMemHandle", 1, 999);
  EXPECT_THROW(static_cast<void>(name_memory(device, memory)), DeviceError);
  device.deallocate(memory);
}

TEST_F(CudaPeerMemory, GpusWithoutALinkAreUnsupported) {
  const Device device = open();
  const OtherProcess other("OtherSide.DISABLED_Exporter", "cuda:1");
  other.send(Order::name);
  const auto handle = other.receive<PeerMemoryHandle>();
  fake.set_peer_access(0);
  EXPECT_THAT(refusal([&] { PeerMemory(device, handle); }), HasSubstr("topo -p2p"));
  fake.set_peer_access(1);
  for (const int code : {205, 217, 711, 800, 801}) {
    fake.fail("cuIpcOpenMemHandle", 1, code);
    EXPECT_THROW(PeerMemory(device, handle), Unsupported) << code;
  }
  fake.fail("cuIpcOpenMemHandle", 1, 2);
  EXPECT_THROW(PeerMemory(device, handle), DeviceError);
  EXPECT_EQ(fake.opened_memory(), 0);
}

/// The fake driver refuses the same calls as the driver.
TEST_F(CudaPeerMemory, TheFakeDriverClosesOnceAndFreesOnlyItsOwn) {
  const Device device = open();
  const OtherProcess other("OtherSide.DISABLED_Exporter", "cuda:1");
  other.send(Order::name);
  const auto handle = other.receive<PeerMemoryHandle>();
  auto* const begin = static_cast<std::byte*>(device.backend().memory_import(handle));
  const auto address = reinterpret_cast<unsigned long long>(begin);
  device.deallocate(begin);  // CUDA_ERROR_INVALID_VALUE, which is ignored
  EXPECT_EQ(device.kind_of(begin), MemoryKind::device);
  const Device second = open("cuda:1");
  const Stream stream = second.create_stream();
  const DeviceBytes there(second, 1);
  EXPECT_THROW(stream.copy(there.data(), begin, 1, CopyDirection::d2d), DeviceError)
      << "only the device that opened it has access";
  device.backend().memory_close(begin);
  EXPECT_EQ(fake.opened_memory(), 0);
  EXPECT_EQ(device.kind_of(begin), MemoryKind::pageable);
  const auto close_again = fake.entry<int (*)(unsigned long long)>("cuIpcCloseMemHandle");
  EXPECT_NE(close_again(address), 0);
  device.backend().memory_close(begin);
}

}  // namespace
}  // namespace penstock::testing
