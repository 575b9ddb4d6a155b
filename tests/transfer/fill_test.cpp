#include "support/gate.hpp"
#include "support/threads.hpp"
#include "transfer/engine_fixture.hpp"
#include "transfer/filler.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace penstock::testing {
namespace {

class FillTest : public FaultyEngineTest {};
PENSTOCK_DEVICE_SUITE(FillTest);
PENSTOCK_SLOW_LINK_SUITE(FillTest);

std::vector<TransferOptions> each_engine() {
  return {many_chunks(), many_movers(), {.threads = 1, .chunk_bytes = 64 * 1024, .slots = 3}, {}};
}

TEST_P(FillTest, EveryByteIsAskedForOnceAndArrives) {
  constexpr std::size_t kAround = 4096;
  for (const TransferOptions& options : each_engine()) {
    TransferEngine engine(*device_, options);
    std::size_t seed = 0;
    for (const std::size_t bytes : {1, 2, 4095, 4096, 65536, 65537, 300'001, (1 << 20) + 3, (3 << 20) + 17}) {
      SCOPED_TRACE(bytes);
      Filler filler(random_bytes(bytes, ++seed));
      const Buffer device = poisoned_on_device(bytes + 2 * kAround);
      const Transfer transfer = engine.fill(device.data() + kAround, bytes, filler.function());
      transfer.synchronize();
      EXPECT_EQ(transfer.path(), TransferPath::staged);
      EXPECT_EQ(transfer.bytes(), bytes);
      filler.expect_all();
      std::vector<std::byte> expected(bytes + 2 * kAround, kPoison);
      std::ranges::copy(filler.source(), expected.begin() + kAround);
      EXPECT_EQ(first_difference(read(device), expected), -1);
    }
  }
}

TEST_P(FillTest, SeveralThreadsFillAtOnce) {
  TransferEngine engine(*device_, many_movers());
  const Buffer device = poisoned_on_device(1 << 20);
  Filler filler(random_bytes(device.size(), 1));
  Hold hold;
  const Transfer transfer = engine.fill(device.data(), device.size(), [&](std::size_t at, auto bytes) {
    filler.fill(at, bytes);
    hold.stay();
  });
  Background waits([&] { transfer.synchronize(); });
  hold.wait_for(2);
  EXPECT_FALSE(transfer.query());
  hold.let_go();
  waits.join();
  EXPECT_EQ(first_difference(read(device), filler.source()), -1);
}

TEST_P(FillTest, FillsAndCopiesOfManyThreads) {
  TransferEngine engine(*device_, many_movers());
  std::vector<std::unique_ptr<Background>> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.push_back(std::make_unique<Background>([&, thread] {
      for (unsigned round = 0; round < 4; ++round) {
        Filler filler(random_bytes(400'000 + 77'777 * thread, 10 * thread + round));
        const Buffer filled = poisoned_on_device(filler.source().size());
        const Buffer copied = poisoned_on_device(filler.source().size());
        const Transfer fill = engine.fill(filled.data(), filled.size(), filler.function());
        engine.copy(copied.data(), filler.source().data(), copied.size(), {.path = TransferPath::staged})
            .synchronize();
        fill.synchronize();
        filler.expect_all();
        EXPECT_EQ(first_difference(read(filled), filler.source()), -1);
        EXPECT_EQ(first_difference(read(copied), filler.source()), -1);
      }
    }));
  }
  for (const auto& thread : threads) thread->join();
}

TEST_P(FillTest, AnExceptionEndsItAndLeavesTheEngineUsable) {
  constexpr std::size_t kBytes = (1 << 20) + 5;
  for (const TransferOptions& options : {many_chunks(), many_movers()}) {
    TransferEngine engine(*device_, options);
    for (std::size_t bad = 0; bad < kBytes; bad += 150'001) {
      SCOPED_TRACE(bad);
      const Buffer device = poisoned_on_device(kBytes);
      std::atomic<bool> ended{false};
      const auto refuse = [&](std::size_t offset, std::span<std::byte> bytes) {
        EXPECT_FALSE(ended);
        if (bad - offset < bytes.size()) throw Refusal("no byte " + std::to_string(bad));
        std::ranges::fill(bytes, std::byte{1});
      };
      const Transfer transfer = engine.fill(device.data(), kBytes, refuse);
      if (bad % 2 == 0) {
        EXPECT_THROW(transfer.synchronize_source(), Refusal);
      } else {
        EXPECT_THROW(transfer.synchronize(), Refusal);
      }
      ended = true;
      EXPECT_THROW((void)transfer.query(), Refusal);
      EXPECT_THROW(transfer.enqueue_wait(device_->create_stream()), Refusal);
      // Nothing that was enqueued before arrives later.
      Filler filler(random_bytes(kBytes, bad));
      engine.fill(device.data(), kBytes, filler.function()).synchronize();
      EXPECT_EQ(first_difference(read(device), filler.source()), -1);
    }
  }
}

TEST_P(FillTest, IsNotCalledOnceItsSourceWasRead) {
  TransferEngine engine(*device_, many_movers());
  const Buffer device = poisoned_on_device((1 << 20) + 1);
  Filler filler(random_bytes(device.size(), 4));
  const Stream stream = device_->create_stream();
  auto alive = std::make_unique<std::atomic<bool>>(true);
  const Transfer transfer =
      engine.fill(device.data(), device.size(), [&, here = alive.get()](std::size_t at, auto bytes) {
        filler.fill(at, bytes);
        EXPECT_TRUE(*here);
      });
  transfer.synchronize_source();
  filler.expect_all();
  alive.reset();
  transfer.enqueue_wait(stream);
  EXPECT_EQ(first_difference(read(device.data(), device.size(), stream), filler.source()), -1);
}

TEST_P(FillTest, ComesAfterAStream) {
  TransferEngine engine(*device_, many_chunks());
  Filler filler(random_bytes(500'000, 5));
  const Buffer device = poisoned_on_device(filler.source().size());
  Filler first(random_bytes(device.size(), 6));
  const Buffer earlier = on_device(first.source());
  GatedStream gated(*device_);
  // The stream overwrites the destination before it is filled.
  gated.stream().copy(device.data(), earlier.data(), device.size(), CopyDirection::d2d);
  const Transfer transfer =
      engine.fill(device.data(), device.size(), filler.function(), {.after = &gated.stream()});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(transfer.query());
  gated.open();
  transfer.synchronize();
  EXPECT_EQ(first_difference(read(device), filler.source()), -1);
}

TEST_P(FillTest, TheEngineMayGoMeanwhile) {
  for (const bool cancelled_first : {false, true}) {
    auto engine = std::make_unique<TransferEngine>(*device_, many_movers());
    const Buffer device = poisoned_on_device(2 << 20);
    std::atomic<bool> gone{false};
    Hold hold;
    auto kept = std::make_shared<int>(0);
    const std::weak_ptr<int> held = kept;
    const Transfer transfer =
        engine->fill(device.data(), device.size(), [&, kept = std::move(kept)](std::size_t, auto bytes) {
          EXPECT_FALSE(gone);
          hold.stay();
          std::ranges::fill(bytes, std::byte{2});
        });
    hold.wait_for(1);
    if (cancelled_first) {
      EXPECT_TRUE(transfer.cancel());
    }
    Background going([&] {
      engine.reset();
      gone = true;
    });
    going.wait_until_stuck();
    EXPECT_FALSE(going.ended());
    hold.let_go();
    going.join();
    EXPECT_THROW(transfer.synchronize(), Closed);
    EXPECT_TRUE(held.expired());
  }
}

TEST_P(FillTest, AFailedCopyIsTheFillsError) {
  TransferEngine engine(*faulty_device_, many_chunks());
  Filler filler(random_bytes(400'000, 7));
  const Buffer device = poisoned_on_device(filler.source().size());
  for (const std::size_t nth : {1u, 2u, 4u}) {
    faulty_->fail(Entry::copy, nth);
    Filler unlucky(filler.source());
    EXPECT_THROW(engine.fill(device.data(), device.size(), unlucky.function()).synchronize(), DeviceError);
  }
  engine.fill(device.data(), device.size(), filler.function()).synchronize();
  EXPECT_EQ(first_difference(read(device), filler.source()), -1);
}

TEST_P(FillTest, TellsWhenItsCopiesRan) {
  TransferEngine engine(*device_, many_chunks());
  Filler filler(random_bytes(200'000, 8));
  const Buffer device = poisoned_on_device(filler.source().size());
  Event origin = device_->create_event(EventTiming::on);
  origin.record(device_->create_stream());
  origin.synchronize();
  const Transfer transfer = engine.fill(device.data(), device.size(), filler.function(), {.timed = true});
  transfer.synchronize();
  const auto span = transfer.span_since(origin);
  ASSERT_TRUE(span);
  EXPECT_LE(span->begin, span->end);
  EXPECT_EQ(transfer.report().bytes, device.size());
  EXPECT_GT(transfer.report().copies, 1u);
}

TEST_P(FillTest, RefusesWhatCannotMeanAnything) {
  TransferEngine engine(*device_);
  const auto nothing = [](std::size_t, std::span<std::byte>) { FAIL() << "called"; };
  const Buffer device = poisoned_on_device(100);
  std::vector<std::byte> host(100);
  EXPECT_THROW((void)engine.fill(nullptr, 100, nothing), InvalidArgument);
  EXPECT_THROW((void)engine.fill(host.data(), 100, nothing), InvalidArgument);
  EXPECT_THROW((void)engine.fill(device.data(), 100, nullptr), InvalidArgument);
  EXPECT_TRUE(engine.fill(nullptr, 0, nothing).query());
}

}  // namespace
}  // namespace penstock::testing
