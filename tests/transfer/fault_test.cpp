#include "support/fork.hpp"
#include "support/gate.hpp"
#include "support/threads.hpp"
#include "transfer/engine_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

namespace penstock::testing {
namespace {

class EngineFaultTest : public FaultyEngineTest {};
PENSTOCK_DEVICE_SUITE(EngineFaultTest);

TEST_P(EngineFaultTest, AFailedCopyReachesWhoeverAsksAndLeavesNothingBehind) {
  const auto source = random_bytes(2 << 20, 1);
  for (const TransferPath path : kPaths) {
    for (const Entry entry : {Entry::copy, Entry::event_record}) {
      for (const std::size_t nth : {1u, 2u, 3u}) {
        {
          TransferEngine engine(*faulty_device_, nth == 2 ? many_movers() : many_chunks());
          const Buffer device = on_device(source);
          std::vector<std::byte> back(source.size());
          for (const CopyDirection direction : {CopyDirection::h2d, CopyDirection::d2h}) {
            const bool h2d = direction == CopyDirection::h2d;
            // Direct: one copy, one event. Packed to the device: three copies, and two events.
            if (path == TransferPath::direct && nth > 1) continue;
            if (path == TransferPath::packed && h2d && entry == Entry::event_record) continue;
            faulty_->fail(entry, nth);
            const Transfer transfer =
                h2d ? engine.copy(device.data(), source.data(), source.size(), {.path = path})
                    : engine.copy(back.data(), device.data(), source.size(), {.path = path});
            EXPECT_THROW(transfer.synchronize(), DeviceError) << transfer_path_name(path) << nth;
            EXPECT_THROW((void)transfer.query(), DeviceError);
            EXPECT_THROW(transfer.synchronize_source(), DeviceError);
            const Stream stream = device_->create_stream();
            EXPECT_THROW(stream.wait(transfer), DeviceError);
            EXPECT_FALSE(transfer.cancel());
            faulty_->heal();
            // The engine is as good as before.
            engine.copy(device.data(), source.data(), source.size(), {.path = path}).synchronize();
            std::fill(back.begin(), back.end(), kPoison);
            engine.copy(back.data(), device.data(), source.size(), {.path = path}).synchronize();
            EXPECT_EQ(first_difference(back, source), -1);
          }
        }
        EXPECT_EQ(faulty_->live(), LiveHandles{}) << transfer_path_name(path);
      }
    }
  }
}

TEST_P(EngineFaultTest, AFailedAllocationInTheMiddleIsReported) {
  const auto source = random_bytes(1 << 20, 2);
  for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
    {
      TransferEngine engine(*faulty_device_, many_chunks());
      const Buffer device = poisoned_on_device(source.size());
      const auto refuse = [] { throw Unsupported("no memory may be locked"); };
      const auto exhaust = [] { throw OutOfMemory("host memory", 1, 1, 0); };
      faulty_->fail(Entry::host_register, 1, FaultyBackend::kForever, refuse);
      faulty_->fail(Entry::host_allocate, 1, FaultyBackend::kForever, exhaust);
      const Transfer transfer = engine.copy(device.data(), source.data(), source.size(), {.path = path});
      EXPECT_THROW(transfer.synchronize(), OutOfMemory);
      faulty_->heal();
      engine.copy(device.data(), source.data(), source.size(), {.path = path}).synchronize();
      EXPECT_EQ(first_difference(read(device), source), -1);
    }
    EXPECT_EQ(faulty_->live(), LiveHandles{});
  }
}

TEST_P(EngineFaultTest, StagingMakesDoWithLittlePinnedMemory) {
  const auto source = random_bytes(3 << 20, 3);
  TransferEngine engine(*faulty_device_, {.threads = 2, .chunk_bytes = 1 << 20, .slots = 2});
  const Buffer device = poisoned_on_device(source.size());
  const auto exhaust = [] { throw OutOfMemory("host memory", 1, 1, 0); };
  // Twice: the pool itself asks for less before it gives up.
  faulty_->fail(Entry::host_register, 1, 2, exhaust);
  faulty_->fail(Entry::host_allocate, 1, 2, exhaust);
  const Transfer transfer =
      engine.copy(device.data(), source.data(), source.size(), {.path = TransferPath::staged});
  transfer.synchronize();
  EXPECT_GE(transfer.report().copies, 6u);
  EXPECT_EQ(first_difference(read(device), source), -1);
}

TEST_P(EngineFaultTest, CancelledTransfersStopAndSaySo) {
  const auto source = random_bytes(4 << 20, 4);
  {
    TransferEngine engine(*faulty_device_, many_chunks());
    const Buffer device = poisoned_on_device(source.size());
    std::vector<std::byte> back(source.size(), kPoison);
    for (const bool h2d : {true, false}) {
      GatedStream gate(*faulty_device_);
      const CopyOptions options{.path = TransferPath::staged, .after = &gate.stream()};
      const std::size_t waits = faulty_->calls(Entry::event_synchronize);
      const Transfer transfer = h2d ? engine.copy(device.data(), source.data(), source.size(), options)
                                    : engine.copy(back.data(), device.data(), source.size(), options);
      // Both slots' copies are held back, and somebody waits for the first.
      while (faulty_->calls(Entry::event_synchronize) == waits) std::this_thread::yield();
      EXPECT_TRUE(transfer.cancel());
      gate.open();
      EXPECT_THROW(transfer.synchronize(), Closed);
      EXPECT_THROW((void)transfer.query(), Closed);
      EXPECT_LE(faulty_->copied_bytes(h2d ? CopyDirection::h2d : CopyDirection::d2h), 2 * 64 * 1024u)
          << "more than was in the slots";
    }
    // Neither end is touched any more.
    std::fill(back.begin(), back.end(), kPoison);
    const auto untouched = random_bytes(source.size(), 5);
    engine.copy(device.data(), untouched.data(), untouched.size()).synchronize();
    EXPECT_EQ(first_difference(read(device), untouched), -1);
    EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](std::byte byte) { return byte == kPoison; }));
    const Transfer finished =
        engine.copy(device.data(), source.data(), source.size(), {.path = TransferPath::staged});
    finished.synchronize();
    EXPECT_FALSE(finished.cancel());
  }
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(EngineFaultTest, CancelSaysHowTheTransferEnds) {
  const auto source = random_bytes(1 << 20, 15);
  const Buffer device = poisoned_on_device(source.size());
  TransferEngine engine(*faulty_device_, many_chunks());
  for (std::size_t i = 0; i < 24; ++i) {
    const Transfer transfer =
        engine.copy(device.data(), source.data(), source.size(), {.path = TransferPath::staged});
    while (transfer.report().copies < i % 16) std::this_thread::yield();
    const bool will_be = transfer.cancel();
    bool cancelled = false;
    try {
      transfer.synchronize();
    } catch (const Closed&) {
      cancelled = true;
    }
    EXPECT_EQ(cancelled, will_be);
  }
}

TEST_P(EngineFaultTest, WhatIsWithTheDriverIsNotCancelled) {
  TransferEngine engine(*faulty_device_, many_movers());
  const auto bytes = random_bytes(2 * 256 * 1024, 12);
  const Buffer device = on_device(bytes);
  std::vector<std::byte> back(bytes.size(), kPoison);
  GatedStream gate(*faulty_device_);
  const Transfer transfer = engine.copy(back.data(), device.data(), bytes.size(),
                                        {.path = TransferPath::staged, .after = &gate.stream()});
  while (transfer.report().copies < 2) std::this_thread::yield();
  EXPECT_FALSE(transfer.cancel());
  gate.open();
  transfer.synchronize();
  EXPECT_EQ(first_difference(back, bytes), -1);
}

// Fails if a transfer is ended before its copies have drained: on HostLate they then come after the fill.
TEST_P(EngineFaultTest, WhatEndedTouchesItsDestinationNoMore) {
  const auto source = random_bytes(4 << 20, 11);
  const auto expect_untouched = [&](TransferEngine& engine, const Buffer& device, const Stream* after) {
    const Stream other = device_->create_stream();
    other.fill(device.data(), 0x5A, device.size());
    other.synchronize();
    const Buffer elsewhere = poisoned_on_device(source.size());
    for (const TransferPath path : kPaths) {  // whatever is still under way in the engine comes before these
      engine.copy(elsewhere.data(), source.data(), source.size(), {.path = path, .after = after})
          .synchronize();
    }
    const std::vector<std::byte> filled(device.size(), std::byte{0x5A});
    EXPECT_EQ(first_difference(read(device), filled), -1);
  };
  // One thread and slots to spare: nobody waits for the copies of what has ended.
  TransferEngine engine(*faulty_device_, {.threads = 1, .chunk_bytes = 64 * 1024, .slots = 16});
  const Buffer device = poisoned_on_device(source.size());
  // The first wait of the host may only report a failure of earlier work.
  for (const bool tells_late : {false, true}) {
    {
      GatedStream gate(*faulty_device_);
      const Transfer transfer = engine.copy(device.data(), source.data(), source.size(),
                                            {.path = TransferPath::staged, .after = &gate.stream()});
      while (transfer.report().copies == 0) std::this_thread::yield();
      if (tells_late) faulty_->fail(Entry::stream_synchronize);
      EXPECT_TRUE(transfer.cancel());
      gate.open();
      EXPECT_THROW(transfer.synchronize(), Closed);
      faulty_->heal();
      expect_untouched(engine, device, &gate.stream());
    }
    for (const TransferPath path : kPaths) {
      // Of packed chunks the last copy fails; direct fails in marking the only one.
      faulty_->fail(path == TransferPath::direct ? Entry::event_record : Entry::copy,
                    path == TransferPath::direct ? 1 : 3);
      if (tells_late) faulty_->fail(Entry::stream_synchronize);
      const Buffer pinned = pinned_->allocate(source.size());
      const Transfer transfer =
          engine.copy(device.data(), path == TransferPath::direct ? pinned.data() : source.data(),
                      source.size(), {.path = path});
      EXPECT_THROW(transfer.synchronize(), DeviceError) << transfer_path_name(path);
      faulty_->heal();
      expect_untouched(engine, device, nullptr);
    }
  }
}

TEST_P(EngineFaultTest, TheEngineMayGoInMidTransfer) {
  const auto source = random_bytes(4 << 20, 6);
  for (int round = 0; round < 4; ++round) {
    const Buffer device = on_device(source);
    const Buffer target = poisoned_on_device(3 * source.size());
    // Pinned ends: the driver's own copy of pageable memory would wait for the gate before it returns.
    const Buffer from = pinned_->allocate(source.size());
    const Buffer back = pinned_->allocate(3 * source.size());
    std::vector<Transfer> transfers;
    {
      std::optional<GatedStream> gate(*faulty_device_);
      std::thread opener;
      {
        TransferEngine engine(*faulty_device_, many_chunks());
        std::size_t at = 0;
        for (const TransferPath path : kPaths) {
          const CopyOptions options{.path = path, .after = round % 2 == 0 ? &gate->stream() : nullptr};
          transfers.push_back(engine.copy(target.data() + at, from.data(), source.size(), options));
          transfers.push_back(engine.copy(back.data() + at, device.data(), source.size(), options));
          at += source.size();
        }
        opener = std::thread([&] { gate->open(); });
      }
      opener.join();
    }
    int ended = 0;
    for (const Transfer& transfer : transfers) {
      try {
        transfer.synchronize();
        ++ended;
      } catch (const Closed&) {
        ++ended;
      }
    }
    EXPECT_EQ(ended, 6);
    transfers.clear();
    EXPECT_EQ(faulty_->live(), LiveHandles{});
  }
}

// A thread that waits for a transfer works on it, in an engine that another thread destroys. A transfer that
// is done all the same must have its own bytes: pinned memory that one path gives back may go to another path
// at once.
TEST_P(EngineFaultTest, TheEngineMayGoWhileAnotherThreadWaits) {
  const auto source = random_bytes(4 << 20, 10);
  const auto stored = random_bytes(4 << 20, 11);
  const Buffer device = on_device(stored);
  const std::size_t half = source.size() / 2;
  for (int round = 0; round < 10; ++round) {
    const Buffer target = poisoned_on_device(2 * source.size());
    std::vector<std::byte> back(source.size(), kPoison);
    auto engine =
        std::make_unique<TransferEngine>(*faulty_device_, round % 2 == 0 ? many_chunks() : many_movers());
    std::vector<std::thread> waiting;
    std::array<bool, 4> done{};
    for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
      const std::size_t at = path == TransferPath::staged ? 0 : half;
      const Transfer to = engine->copy(target.data() + 2 * at, source.data(), source.size(), {.path = path});
      const Transfer from = engine->copy(back.data() + at, device.data() + at, half, {.path = path});
      for (const Transfer& transfer : {to, from}) {
        waiting.emplace_back([transfer, &ended = done[waiting.size()]] {
          try {
            transfer.synchronize();
            ended = true;
          } catch (const Closed&) {
          }
        });
      }
    }
    engine.reset();
    for (std::thread& thread : waiting) thread.join();
    const std::vector<std::byte> bytes = read(target);
    const std::span<const std::byte> arrived = bytes;
    for (std::size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) continue;
      const std::size_t at = i < 2 ? 0 : half;
      if (i % 2 == 0) {
        EXPECT_EQ(first_difference(arrived.subspan(2 * at, source.size()), source), -1) << i;
      } else {
        EXPECT_EQ(first_difference(std::span(back).subspan(at, half), std::span(stored).subspan(at, half)),
                  -1)
            << i;
      }
    }
    EXPECT_EQ(faulty_->live().device_allocations, 0U);
    EXPECT_EQ(faulty_->live().registrations, 0U);
  }
}

TEST_P(EngineFaultTest, AsynchronousFailuresComeToLight) {
  TransferEngine engine(*faulty_device_, many_chunks());
  const auto source = random_bytes(1 << 20, 7);
  const Buffer device = poisoned_on_device(source.size());
  for (const TransferPath path : {TransferPath::direct, TransferPath::packed}) {
    const Transfer transfer = engine.copy(device.data(), source.data(), source.size(), {.path = path});
    faulty_->fail(Entry::event_synchronize);
    EXPECT_THROW(transfer.synchronize(), DeviceError) << transfer_path_name(path);
    faulty_->heal();
    EXPECT_THROW((void)transfer.query(), DeviceError) << "the first ending counts";
    const Transfer asked = engine.copy(device.data(), source.data(), source.size(), {.path = path});
    faulty_->fail(Entry::event_query);
    EXPECT_THROW((void)asked.query(), DeviceError) << transfer_path_name(path);
    faulty_->heal();
    EXPECT_THROW(asked.synchronize(), DeviceError) << "the first ending counts";
  }
}

// A failed device cannot be waited for, and no longer touches anything.
TEST_P(EngineFaultTest, ADeviceThatCannotBeWaitedForEndsTransfersAllTheSame) {
  const auto source = random_bytes(1 << 20, 13);
  std::vector<Buffer> devices;  // one for each: nobody waits for the copies that were enqueued all the same
  for (int i = 0; i < 6; ++i) devices.push_back(on_device(source));
  auto device = devices.begin();
  for (const TransferPath path : kPaths) {
    std::vector<std::byte> back(source.size());
    auto engine = std::make_unique<TransferEngine>(*faulty_device_, many_movers());
    for (const bool h2d : {true, false}) {
      faulty_->fail(path == TransferPath::direct ? Entry::event_record : Entry::copy, 1,
                    FaultyBackend::kForever);
      faulty_->fail(Entry::stream_synchronize, 1, FaultyBackend::kForever);
      const Transfer transfer =
          h2d ? engine->copy(device->data(), source.data(), source.size(), {.path = path})
              : engine->copy(back.data(), device->data(), source.size(), {.path = path});
      EXPECT_THROW(transfer.synchronize(), DeviceError) << transfer_path_name(path);
      ++device;
    }
    engine.reset();
    faulty_->heal();
  }
}

TEST_P(EngineFaultTest, SlowEntriesChangeNoBytes) {
  const auto source = random_bytes(700000, 8);
  for (const Entry entry :
       {Entry::copy, Entry::event_record, Entry::event_synchronize, Entry::stream_wait_event}) {
    faulty_->delay(entry, std::chrono::microseconds(300));
    TransferEngine engine(*faulty_device_, many_movers());
    for (const TransferPath path : kPaths) {
      const Buffer device = poisoned_on_device(source.size());
      std::vector<std::byte> back(source.size(), kPoison);
      engine.copy(device.data(), source.data(), source.size(), {.path = path}).synchronize();
      engine.copy(back.data(), device.data(), source.size(), {.path = path}).synchronize();
      EXPECT_EQ(first_difference(back, source), -1) << transfer_path_name(path);
    }
    faulty_->delay(entry, {});
  }
}

class ProcessTest : public EngineTest {};
PENSTOCK_DEVICE_SUITE(ProcessTest);

/// Runs `body` in a forked child and gives its wait status, after at most five minutes.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);
    body();
    _exit(100);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_P(ProcessTest, AForkedChildIsToldAndLeavesCleanly) {
  auto engine = std::make_unique<TransferEngine>(*device_, many_chunks());
  const auto source = random_bytes(1 << 20, 9);
  const Buffer device = poisoned_on_device(source.size());
  Transfer transfer =
      engine->copy(device.data(), source.data(), source.size(), {.path = TransferPath::staged});
  const int status = status_of_child([&] {
    const TransferPiece piece{source.data(), device.data(), source.size()};
    const CopyOptions known{.path = TransferPath::staged,
                            .source_kind = MemoryKind::pageable,
                            .destination_kind = MemoryKind::device};
    const CopyOptions packed{.path = TransferPath::packed};
    if (!says_forked([&] { (void)engine->copy(device.data(), source.data(), source.size(), known); })) {
      _exit(1);
    }
    if (!says_forked([&] { (void)engine->copy_pieces({&piece, 1}, CopyDirection::h2d, packed); })) _exit(2);
    engine.reset();
    _exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  transfer.synchronize();
  EXPECT_EQ(first_difference(read(device), source), -1);
}

// If another thread held a mutex at the fork, the child's copy of it is never released.
TEST_P(EngineFaultTest, AForkedChildLeavesWhateverAnotherThreadWasDoing) {
  const auto source = random_bytes(1 << 20, 14);
  const Buffer device = poisoned_on_device(source.size());
  auto engine = std::make_unique<TransferEngine>(*faulty_device_, many_chunks());
  Hold hold;  // a ring that makes its slots
  faulty_->before(Entry::event_create, [&] { hold.stay(); });
  Background other([&] {
    engine->copy(device.data(), source.data(), source.size(), {.path = TransferPath::staged}).synchronize();
  });
  hold.wait_for(1);
  const int status = status_of_child([&] {
    engine.reset();
    _exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status));
  hold.let_go();
  other.join();
  EXPECT_EQ(first_difference(read(device), source), -1);
}

/// Begins a transfer that takes a while, and exits like a program that forgot it.
[[noreturn]] void exit_in_mid_transfer(const Device& device, TransferPath path, bool destroy) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const auto* source = new std::vector<std::byte>(kBytes);
  auto* memory = new Pool(make_device_pool(device));
  auto* destination = new Buffer(memory->allocate(kBytes));
  auto* engine = new TransferEngine(device, many_chunks());
  auto* transfer = new Transfer(engine->copy(destination->data(), source->data(), kBytes, {.path = path}));
  if (destroy) delete engine;
  static_cast<void>(transfer);
  std::exit(0);
}

TEST_P(ProcessTest, ExitInMidTransferIsQuietAndClean) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, which opens the device itself
  for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
    for (const bool destroy : {false, true}) {
      EXPECT_EXIT(exit_in_mid_transfer(*device_, path, destroy), ::testing::ExitedWithCode(0), "^$");
    }
  }
}

}  // namespace
}  // namespace penstock::testing
