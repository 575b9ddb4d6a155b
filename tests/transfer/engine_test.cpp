#include "support/gate.hpp"
#include "support/threads.hpp"
#include "transfer/engine_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

namespace penstock::testing {
namespace {

class TransferEngineTest : public EngineTest {};
PENSTOCK_DEVICE_SUITE(TransferEngineTest);
PENSTOCK_SLOW_LINK_SUITE(TransferEngineTest);

constexpr std::size_t kSizes[] = {1, 7, 4096, 65537, 1 << 20, (3 << 20) + 13};
constexpr TransferPath kHostPaths[] = {TransferPath::direct, TransferPath::staged, TransferPath::packed,
                                       TransferPath::automatic};

TEST_P(TransferEngineTest, EveryPathBringsPageableBytesToTheDevice) {
  TransferEngine chunks(*device_, many_chunks());
  TransferEngine movers(*device_, many_movers());
  for (const TransferPath path : kHostPaths) {
    for (const std::size_t bytes : kSizes) {
      TransferEngine& engine = bytes % 2 == 0 ? chunks : movers;
      const auto source = random_bytes(bytes, bytes);
      const Buffer destination = poisoned_on_device(bytes);
      const Transfer transfer = engine.copy(destination.data(), source.data(), bytes, {.path = path});
      transfer.synchronize();
      EXPECT_TRUE(transfer.query());
      EXPECT_EQ(first_difference(read(destination), source), -1) << transfer_path_name(path) << ' ' << bytes;
      const TransferReport report = transfer.report();
      EXPECT_EQ(report.bytes, bytes);
      EXPECT_EQ(report.direction, CopyDirection::h2d);
      EXPECT_NE(report.path, TransferPath::automatic);
      if (path != TransferPath::automatic) {
        EXPECT_EQ(report.path, path);
      }
      EXPECT_GT(report.seconds, 0);
    }
  }
}

TEST_P(TransferEngineTest, EveryPathBringsDeviceBytesToPageableMemory) {
  TransferEngine chunks(*device_, many_chunks());
  TransferEngine movers(*device_, many_movers());
  for (const TransferPath path : kHostPaths) {
    for (const std::size_t bytes : kSizes) {
      TransferEngine& engine = bytes % 2 == 0 ? chunks : movers;
      const auto expected = random_bytes(bytes, bytes + 1);
      const Buffer source = on_device(expected);
      std::vector<std::byte> destination(bytes, kPoison);
      const Transfer transfer = engine.copy(destination.data(), source.data(), bytes, {.path = path});
      transfer.synchronize();
      EXPECT_TRUE(transfer.query());
      EXPECT_EQ(first_difference(destination, expected), -1) << transfer_path_name(path) << ' ' << bytes;
      EXPECT_EQ(transfer.report().direction, CopyDirection::d2h);
    }
  }
}

TEST_P(TransferEngineTest, PinnedAndRegisteredMemoryGoDirectly) {
  TransferEngine engine(*device_);
  const auto source = random_bytes(1 << 20, 3);
  Buffer pinned = pinned_->allocate(source.size());
  std::memcpy(pinned.data(), source.data(), source.size());
  const Buffer destination = poisoned_on_device(source.size());
  Transfer transfer = engine.copy(destination.data(), pinned.data(), source.size());
  transfer.synchronize();
  EXPECT_EQ(transfer.path(), TransferPath::direct);
  EXPECT_EQ(transfer.report().copies, 1u);
  EXPECT_EQ(first_difference(read(destination), source), -1);

  std::vector<std::byte> back(source.size(), kPoison);
  {
    const Registration registration(*device_, back.data(), back.size());
    transfer = engine.copy(back.data(), destination.data(), back.size());
    transfer.synchronize();
    EXPECT_EQ(transfer.path(), TransferPath::direct);
  }
  EXPECT_EQ(first_difference(back, source), -1);
}

TEST_P(TransferEngineTest, MemoryThatBeginsAndEndsInLockedPagesIsPageableAllTheSame) {
  constexpr std::size_t kPages = 300;
  constexpr std::size_t kPage = 4096;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPage, kPages * kPage)), &std::free);
  const auto bytes = random_bytes(kPages * kPage, 12);
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  const std::size_t begin = 200;
  const std::size_t count = (kPages - 1) * kPage;
  for (const std::size_t locked_page : {std::size_t{0}, kPages - 1}) {
    const Registration neighbour(*device_, memory.get() + locked_page * kPage, 100);
    TransferEngine engine(*device_, many_chunks());
    const Buffer there = poisoned_on_device(count);
    engine.copy(there.data(), memory.get() + begin, count).synchronize();
    EXPECT_EQ(first_difference(read(there), std::span(bytes).subspan(begin, count)), -1);
    std::memset(memory.get() + begin, 0, count);
    engine.copy(memory.get() + begin, there.data(), count).synchronize();
    EXPECT_EQ(first_difference({memory.get(), bytes.size()}, bytes), -1);
  }
  // Both ends lie in locked pages; the pages between are not locked.
  const Registration first(*device_, memory.get(), 100);
  const Registration last(*device_, memory.get() + (kPages - 1) * kPage, 100);
  TransferEngine engine(*device_, many_chunks());
  const Buffer there = poisoned_on_device(count);
  engine.copy(there.data(), memory.get() + begin, count).synchronize();
  EXPECT_EQ(first_difference(read(there), std::span(bytes).subspan(begin, count)), -1);
}

TEST_P(TransferEngineTest, MemoryWhoseFirstPageAnotherLibraryLockedIsPageable) {
  constexpr std::size_t kPage = 4096;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPage, 8 * kPage)), &std::free);
  const auto bytes = random_bytes(8 * kPage, 16);
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  device_->register_host(memory.get(), kPage, false);
  {
    TransferEngine engine(*device_);
    const Buffer device = poisoned_on_device(bytes.size());
    engine.copy(device.data(), memory.get(), bytes.size()).synchronize();
    EXPECT_EQ(first_difference(read(device), bytes), -1);
  }
  device_->unregister_host(memory.get());
}

TEST_P(TransferEngineTest, DeviceToDevice) {
  TransferEngine engine(*device_);
  const auto bytes = random_bytes(300001, 4);
  const Buffer source = on_device(bytes);
  const Buffer destination = poisoned_on_device(bytes.size());
  const Transfer transfer = engine.copy(destination.data(), source.data(), bytes.size());
  transfer.synchronize();
  EXPECT_EQ(transfer.report().direction, CopyDirection::d2d);
  EXPECT_EQ(first_difference(read(destination), bytes), -1);
}

TEST_P(TransferEngineTest, CopiesOnTheDeviceAreDoneWhenTheEngineHasGone) {
  const auto bytes = random_bytes(300000, 17);
  const Buffer source = on_device(bytes);
  for (const TransferPath path : {TransferPath::direct, TransferPath::packed}) {
    const Buffer destination = poisoned_on_device(bytes.size());
    GatedStream gate(*device_);
    auto engine = std::make_unique<TransferEngine>(*device_);
    (void)engine->copy(destination.data(), source.data(), bytes.size(),
                       {.path = path, .after = &gate.stream()});
    Background going([&] { engine.reset(); });
    going.wait_until_stuck();
    EXPECT_FALSE(going.ended()) << transfer_path_name(path);
    gate.open();
    going.join();
    EXPECT_EQ(first_difference(read(destination), bytes), -1) << transfer_path_name(path);
  }
}

TEST_P(TransferEngineTest, AskingAloneSeesTheEnd) {
  TransferEngine engine(*device_, many_movers());
  const auto bytes = random_bytes(1 << 20, 18);
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    for (int round = 0; round < 3; ++round) {
      const Buffer device = poisoned_on_device(bytes.size());
      const Buffer pinned = pinned_->allocate(bytes.size());
      std::memcpy(pinned.data(), bytes.data(), bytes.size());
      const Transfer to = engine.copy(device.data(), pinned.data(), bytes.size(), {.path = path});
      while (!to.query()) std::this_thread::yield();
      EXPECT_EQ(first_difference(read(device), bytes), -1) << transfer_path_name(path);
      std::fill(pinned.bytes().begin(), pinned.bytes().end(), kPoison);
      const Transfer from = engine.copy(pinned.data(), device.data(), bytes.size(), {.path = path});
      while (!from.query()) std::this_thread::yield();
      EXPECT_EQ(first_difference(pinned.bytes(), bytes), -1) << transfer_path_name(path);
    }
  }
}

TEST_P(TransferEngineTest, StagedSourceMayChangeOnceItWasRead) {
  TransferEngine engine(*device_, many_chunks());
  auto source = random_bytes(2 << 20, 5);
  const auto expected = source;
  const Buffer destination = poisoned_on_device(source.size());
  const Transfer transfer =
      engine.copy(destination.data(), source.data(), source.size(), {.path = TransferPath::staged});
  transfer.synchronize_source();
  std::fill(source.begin(), source.end(), kPoison);
  transfer.synchronize();
  EXPECT_EQ(first_difference(read(destination), expected), -1);
}

TEST_P(TransferEngineTest, DirectSourceMayChangeOnceItWasRead) {
  TransferEngine engine(*device_);
  const auto expected = random_bytes(1 << 20, 14);
  const Buffer pinned = pinned_->allocate(expected.size());
  std::memcpy(pinned.data(), expected.data(), expected.size());
  const Buffer destination = poisoned_on_device(expected.size());
  const Transfer transfer =
      engine.copy(destination.data(), pinned.data(), expected.size(), {.path = TransferPath::direct});
  transfer.synchronize_source();
  std::fill(pinned.bytes().begin(), pinned.bytes().end(), kPoison);
  transfer.synchronize();
  EXPECT_EQ(first_difference(read(destination), expected), -1);
}

TEST_P(TransferEngineTest, DeviceSourceMayChangeOnceItWasRead) {
  TransferEngine engine(*device_, many_chunks());
  const auto expected = random_bytes(1 << 20, 15);
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    const Buffer source = on_device(expected);
    const Buffer back = pinned_->allocate(expected.size());
    std::fill(back.bytes().begin(), back.bytes().end(), kPoison);
    const Transfer transfer = engine.copy(back.data(), source.data(), expected.size(), {.path = path});
    transfer.synchronize_source();
    const Stream other = device_->create_stream();
    other.fill(source.data(), 0x5A, source.size());
    other.synchronize();
    transfer.synchronize();
    EXPECT_EQ(first_difference(back.bytes(), expected), -1) << transfer_path_name(path);
  }
}

TEST_P(TransferEngineTest, PackedSourcesMayChangeOnReturn) {
  TransferEngine engine(*device_, many_chunks());
  GatedStream gate(*device_);
  auto source = random_bytes(1 << 20, 6);
  const auto expected = source;
  const Buffer destination = poisoned_on_device(source.size());
  const Transfer transfer = engine.copy(destination.data(), source.data(), source.size(),
                                        {.path = TransferPath::packed, .after = &gate.stream()});
  std::fill(source.begin(), source.end(), kPoison);
  EXPECT_FALSE(transfer.query());
  gate.open();
  transfer.synchronize();
  EXPECT_EQ(first_difference(read(destination), expected), -1);
}

// Fails if the stream's wait is removed: the copy on the consumer's stream then reads poison (always on
// HostLate).
TEST_P(TransferEngineTest, AStreamThatWaitsSeesTheBytes) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(1 << 20, 7);
  Buffer pinned = pinned_->allocate(source.size());
  std::memcpy(pinned.data(), source.data(), source.size());
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    const Buffer destination = poisoned_on_device(source.size());
    const Stream consumer = device_->create_stream();
    const Transfer transfer = engine.copy(destination.data(), pinned.data(), source.size(), {.path = path});
    consumer.wait(transfer);
    EXPECT_EQ(first_difference(read(destination.data(), source.size(), consumer), source), -1)
        << transfer_path_name(path);
  }
}

TEST_P(TransferEngineTest, WaitsForTheStreamItComesAfter) {
  TransferEngine engine(*device_, many_chunks());
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    const auto first = random_bytes(200000, 8);
    const auto second = random_bytes(200000, 9);
    const Buffer shared = on_device(first);
    const Buffer kept = poisoned_on_device(first.size());
    Buffer pinned = pinned_->allocate(second.size());
    std::memcpy(pinned.data(), second.data(), second.size());
    GatedStream consumer(*device_);
    // The consumer still reads `shared` when the transfer that overwrites it is requested.
    consumer.stream().copy(kept.data(), shared.data(), first.size(), CopyDirection::d2d);
    const Transfer transfer =
        engine.copy(shared.data(), pinned.data(), second.size(), {.path = path, .after = &consumer.stream()});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(transfer.query()) << transfer_path_name(path);
    consumer.open();
    transfer.synchronize();
    EXPECT_EQ(first_difference(read(kept), first), -1) << transfer_path_name(path);
    EXPECT_EQ(first_difference(read(shared), second), -1) << transfer_path_name(path);
  }
}

TEST_P(TransferEngineTest, ToTheHostComesAfterTheStreamThatProduces) {
  TransferEngine engine(*device_, many_chunks());
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    const auto bytes = random_bytes(200000, 10);
    const Buffer produced = on_device(bytes);
    const Buffer result = poisoned_on_device(bytes.size());
    Buffer destination = pinned_->allocate(bytes.size());
    std::memset(destination.data(), 0, bytes.size());
    GatedStream producer(*device_);
    producer.stream().copy(result.data(), produced.data(), bytes.size(), CopyDirection::d2d);
    const Transfer transfer = engine.copy(destination.data(), result.data(), bytes.size(),
                                          {.path = path, .after = &producer.stream()});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(transfer.query());
    producer.open();
    transfer.synchronize();
    EXPECT_EQ(first_difference(destination.bytes(), bytes), -1) << transfer_path_name(path);
  }
}

// Hangs if a transfer that is held back holds up another one.
TEST_P(TransferEngineTest, WhatIsHeldBackHoldsUpNothingElse) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(1 << 20, 13);
  Buffer pinned = pinned_->allocate(source.size());
  std::memcpy(pinned.data(), source.data(), source.size());
  const Buffer held_to = poisoned_on_device(source.size());
  const Buffer held_from = poisoned_on_device(source.size());
  const Buffer held_back = pinned_->allocate(source.size());
  const Buffer device = poisoned_on_device(source.size());
  std::vector<std::byte> back(source.size(), kPoison);
  for (const TransferPath path : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    GatedStream gate(*device_);
    const CopyOptions held{.path = path, .after = &gate.stream()};
    const Transfer to = engine.copy(held_to.data(), pinned.data(), source.size(), held);
    const Transfer from = engine.copy(held_back.data(), held_from.data(), source.size(), held);
    for (const TransferPath other : {TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
      engine.copy(device.data(), source.data(), source.size(), {.path = other}).synchronize();
      std::fill(back.begin(), back.end(), kPoison);
      const Transfer home = engine.copy(back.data(), device.data(), source.size(), {.path = other});
      while (!home.query()) std::this_thread::yield();
      EXPECT_EQ(first_difference(back, source), -1);
    }
    EXPECT_FALSE(to.query());
    EXPECT_FALSE(from.query());
    gate.open();
    to.synchronize();
    from.synchronize();
  }
}

TEST_P(TransferEngineTest, TransfersOfManyThreadsInBothDirections) {
  TransferEngine engine(*device_, many_movers());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < 8; ++round) {
        const std::size_t bytes = 1 + random() % 400000;
        const auto source = random_bytes(bytes, t * 100 + static_cast<unsigned>(round));
        const Buffer device = memory_->allocate(bytes);
        std::vector<std::byte> back(bytes, kPoison);
        engine.copy(device.data(), source.data(), bytes, {.path = kHostPaths[random() % 4]}).synchronize();
        engine.copy(back.data(), device.data(), bytes, {.path = kHostPaths[random() % 4]}).synchronize();
        if (back != source) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(TransferEngineTest, ManyTransfersUnderWayAtOnce) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(150000, 11);
  std::vector<Buffer> destinations;
  std::vector<Transfer> transfers;
  for (int i = 0; i < 24; ++i) {
    destinations.push_back(poisoned_on_device(source.size()));
    transfers.push_back(engine.copy(destinations.back().data(), source.data(), source.size(),
                                    {.path = kHostPaths[static_cast<std::size_t>(i) % 4]}));
  }
  for (const Transfer& transfer : transfers) transfer.synchronize();
  for (const Buffer& destination : destinations) EXPECT_EQ(first_difference(read(destination), source), -1);
}

TEST_P(TransferEngineTest, NothingTakesNoTimeAndNoPointers) {
  TransferEngine engine(*device_);
  const Transfer transfer = engine.copy(nullptr, nullptr, 0);
  EXPECT_TRUE(transfer.query());
  transfer.synchronize();
  EXPECT_EQ(transfer.bytes(), 0u);
  EXPECT_TRUE(engine.copy_pieces({}, CopyDirection::h2d).query());
}

TEST_P(TransferEngineTest, RefusesWhatCannotMeanAnything) {
  TransferEngine engine(*device_);
  std::vector<std::byte> host(4096);
  const Buffer device = memory_->allocate(4096);
  EXPECT_THROW((void)engine.copy(nullptr, host.data(), 1), InvalidArgument);
  EXPECT_THROW((void)engine.copy(device.data(), nullptr, 1), InvalidArgument);
  EXPECT_THROW((void)engine.copy(device.data(), nullptr, 1, {.path = TransferPath::staged}), InvalidArgument);
  EXPECT_THROW((void)engine.copy(host.data() + 2048, host.data(), 1024), InvalidArgument);
  EXPECT_THROW((void)engine.copy(host.data() + 2048, host.data(), 1024, {.path = TransferPath::direct}),
               InvalidArgument);
  EXPECT_THROW((void)engine.copy(device.data() + 100, device.data(), 101), InvalidArgument);
  EXPECT_THROW((void)engine.copy(device.data(), device.data() + 100, 101), InvalidArgument);
  EXPECT_THROW((void)engine.copy(device.data() + 2048, device.data(), 1024, {.path = TransferPath::staged}),
               InvalidArgument);
  EXPECT_THROW(TransferEngine(*device_, {.threads = TransferOptions::kMostThreads + 1}), InvalidArgument);
  EXPECT_THROW(TransferEngine(*device_, {.slots = 1}), InvalidArgument);
  EXPECT_THROW(TransferEngine(*device_, {.chunk_bytes = 100}), InvalidArgument);
  engine.copy(device.data(), host.data(), host.size()).synchronize();
}

TEST_P(TransferEngineTest, TakesNoMoreThreadsThanAreOfUseFromAProfile) {
  LinkProfile profile = LinkProfile::defaults(device_->info());
  profile.staging_threads = 1024;
  const TransferEngine engine(*device_, {.profile = profile});
  EXPECT_LE(engine.threads(), TransferOptions::kMostThreads);
}

TEST_P(TransferEngineTest, SteadyStateTakesNothingFromTheSystem) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(1 << 20, 12);
  const Buffer destination = memory_->allocate(source.size());
  std::vector<std::byte> back(source.size());
  const auto go = [&] {
    for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
      engine.copy(destination.data(), source.data(), source.size(), {.path = path}).synchronize();
      engine.copy(back.data(), destination.data(), source.size(), {.path = path}).synchronize();
    }
  };
  go();
  const std::size_t free_before = device_->memory().free;
  for (int i = 0; i < 5; ++i) go();
  if (GetParam().name != "Cuda") {  // other processes share a real GPU
    EXPECT_EQ(device_->memory().free, free_before);
  }
  EXPECT_EQ(first_difference(back, source), -1);
}

}  // namespace
}  // namespace penstock::testing
