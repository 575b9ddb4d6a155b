#include "loader/faulty_fixture.hpp"
#include "support/gate.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

/// Slots of the ring: who has them, for how long, and what happens when none is left.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::size_t kLeaseRow = 1024;
constexpr std::size_t kSlotBytes = kLeaseRow * kBatch;
constexpr std::size_t kOrders = 2 * 256;  ///< of both copy streams

class LoaderLeases : public FaultyLoaderTest {
 protected:
  /// A ring of at most `slots`.
  LoaderOptions limited(std::size_t slots, std::size_t depth = 2, WhenFull when_full = WhenFull::fail) const {
    return {.batch_size = kBatch,
            .shuffle = true,
            .prefetch_depth = depth,
            .device_budget_bytes = slots * kSlotBytes + kOrders,
            .when_full = when_full};
  }

  std::vector<DeviceBatch> take(Loader& loader, std::size_t count) {
    std::vector<DeviceBatch> batches;
    while (batches.size() < count) {
      if (auto batch = loader.next(*stream_)) batches.push_back(std::move(*batch));
    }
    return batches;
  }

  /// Expects the bytes of the samples that the batch claims to hold. Leaves it as it is.
  void expect_intact(const DeviceBatch& batch) {
    const DeviceField& field = batch.field("x");
    const Buffer pinned = pinned_->allocate(field.bytes);
    stream_->copy(pinned.data(), field.data, field.bytes, CopyDirection::d2h);
    stream_->synchronize();
    std::vector<std::byte> expected(batch.size() * kLeaseRow);
    dataset_.gather(0, batch.indices(), expected);
    EXPECT_EQ(first_difference(pinned.bytes(), expected), -1)
        << "epoch " << batch.epoch() << ", batch " << batch.index();
  }

  const Dataset dataset_{{random_field("x", DType::uint8, {kLeaseRow}, 160, 1)}};
};
PENSTOCK_DEVICE_SUITE(LoaderLeases);
PENSTOCK_SLOW_LINK_SUITE(LoaderLeases);

TEST_P(LoaderLeases, KeptBatchesStayAsTheyAreWhileTheRingGrows) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader(dataset_, *device_,
                  {.batch_size = kBatch,
                   .shuffle = true,
                   .residency = Residency::parse(way.residency),
                   .gather = way.gather,
                   .threads = 2});
    std::mt19937_64 random(7);
    std::vector<DeviceBatch> kept;
    std::vector<std::byte*> addresses;
    for (int i = 0; i < 1000; ++i) {
      auto batch = loader.next(*stream_);
      if (!batch || kept.size() == 15 || random() % 4 != 0) continue;
      addresses.push_back(batch->field(0).data);
      kept.push_back(std::move(*batch));
    }
    ASSERT_EQ(kept.size(), 15U);
    EXPECT_EQ(std::set(addresses.begin(), addresses.end()).size(), 15U);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept[i].field(0).data, addresses[i]);
      expect_intact(kept[i]);
    }
    const FeedStatistics statistics = loader.stats();
    EXPECT_GE(statistics.slots, 15U + 1);
    EXPECT_LE(statistics.slots, 15U + 1 + 2);
    EXPECT_EQ(statistics.ring_bytes, statistics.slots * kSlotBytes);
    kept.clear();
    expect_stored(dataset_, read_epoch(loader));
    const std::size_t slots = loader.stats().slots;
    EXPECT_LE(slots, 15U + 1 + 2) << "one may have been on its way";
    expect_stored(dataset_, read_epoch(loader));
    EXPECT_EQ(loader.stats().slots, slots);
  }
}

TEST_P(LoaderLeases, PastTheBudgetTheLeasesThatAreHeldAreNamed) {
  Loader loader(dataset_, *device_, limited(5));
  auto kept = take(loader, 5);
  for (int i = 0; i < 2; ++i) {
    try {
      static_cast<void>(loader.next(*stream_));
      FAIL() << "a sixth batch from five slots";
    } catch (const OutOfMemory& error) {
      EXPECT_THAT(error.what(), HasSubstr("5 batches are held"));
      for (const char* batch : {"0 of epoch 0", "1 of epoch 0", "2 of epoch 0", "4 of epoch 0"}) {
        EXPECT_THAT(error.what(), HasSubstr(batch));
      }
      EXPECT_EQ(error.asked(), kSlotBytes);
      EXPECT_EQ(error.used(), 5 * kSlotBytes);
    }
  }
  for (const DeviceBatch& batch : kept) expect_intact(batch);
  EXPECT_EQ(loader.stats().slots, 5U);
  kept.erase(kept.begin() + 2);
  kept.push_back(std::move(*loader.next(*stream_)));
  EXPECT_EQ(kept.back().index(), 5U);
  for (const DeviceBatch& batch : kept) expect_intact(batch);
  kept.clear();
  EXPECT_EQ(read_epoch(loader).size(), 14U);
  expect_stored(dataset_, read_epoch(loader));
}

TEST_P(LoaderLeases, ABudgetOfOneSlotServesAConsumerThatKeepsNothing) {
  Loader loader(dataset_, *device_, limited(1, 4));
  EXPECT_EQ(loader.stats().slots, 1U);
  for (int epoch = 0; epoch < 2; ++epoch) expect_stored(dataset_, read_epoch(loader));
  auto kept = loader.next(*stream_);
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), OutOfMemory);
  kept->release();
  EXPECT_EQ(loader.next(*stream_)->index(), 1U);
}

TEST_P(LoaderLeases, ARingThatDoesNotGrowServesTheSameAddresses) {
  LoaderOptions options = limited(9);
  options.ring_grows = false;
  Loader loader(dataset_, *device_, options);
  std::vector<const std::byte*> addresses;
  for (int i = 0; i < 40; ++i) {
    if (const auto batch = loader.next(*stream_)) addresses.push_back(batch->field("x").data);
  }
  for (std::size_t i = 3; i < addresses.size(); ++i) EXPECT_EQ(addresses[i], addresses[i - 3]) << i;
  auto kept = take(loader, 3);
  try {
    static_cast<void>(loader.next(*stream_));
    FAIL() << "a fourth batch from three slots";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("ring_grows is off"));
  }
  for (const DeviceBatch& batch : kept) expect_intact(batch);
  EXPECT_EQ(loader.stats().slots, 3U);
}

TEST_P(LoaderLeases, AFullRingIsWaitedForUntilAnyThreadLetsGo) {
  Loader loader(dataset_, *device_, limited(3, 2, WhenFull::wait));
  auto held = take(loader, 3);
  for (std::uint64_t i = 3; i < 12; i += 3) {
    std::promise<void> let_go;
    std::thread other([&, batches = std::exchange(held, {})]() mutable {
      let_go.get_future().wait();
      batches.clear();
    });
    bool asked = false;
    auto batch = loader.next(*stream_, [&] {
      if (!std::exchange(asked, true)) let_go.set_value();
    });
    EXPECT_TRUE(asked) << "nothing was free before";
    if (!asked) let_go.set_value();
    other.join();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->index(), i);
    expect_intact(*batch);
    held = take(loader, 2);
    held.push_back(std::move(*batch));
  }
}

TEST_P(LoaderLeases, AFullRingIsWaitedForInThreadsThatAskNothing) {
  Loader loader(dataset_, *device_, limited(3, 2, WhenFull::wait));
  auto held = take(loader, 3);
  auto waiting = std::async(std::launch::async, [&] { return loader.next(*stream_); });
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  held.pop_back();
  ASSERT_EQ(waiting.wait_for(120s), std::future_status::ready);
  const auto batch = waiting.get();
  EXPECT_EQ(batch->index(), 3U);
  expect_intact(*batch);
}

TEST_P(LoaderLeases, AFullRingIsGivenUpAfterItsPatience) {
  LoaderOptions options = limited(3, 2, WhenFull::wait);
  options.full_patience = 20ms;
  Loader loader(dataset_, *device_, options);
  auto held = take(loader, 3);
  for (const bool asks : {false, true}) {
    try {
      if (asks) {
        static_cast<void>(loader.next(*stream_, [] {}));
      } else {
        static_cast<void>(loader.next(*stream_));
      }
      FAIL() << "a fourth batch from three slots";
    } catch (const OutOfMemory& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("3 batches are held (0 of epoch 0, 1 of epoch 0, 2 of epoch 0), and none"));
    }
  }
  held.erase(held.begin());
  EXPECT_EQ(loader.next(*stream_)->index(), 3U) << "no batch was lost";
}

TEST_P(LoaderLeases, ThreadsThatAllHoldAndAllWaitAreTold) {
  for (const WhenFull when_full : {WhenFull::wait, WhenFull::fail}) {
    LoaderOptions options = limited(4, 2, when_full);
    options.full_patience = 3ms;
    Loader loader(dataset_, *device_, options);
    std::atomic<int> refused{0};
    const auto consume = [&] {
      const Stream stream = device_->create_stream();
      std::vector<DeviceBatch> held;
      for (int i = 0; i < 60; ++i) {
        try {
          if (auto batch = loader.next(stream)) held.push_back(std::move(*batch));
        } catch (const OutOfMemory&) {
          ++refused;
          held.clear();
        }
      }
    };
    std::thread a(consume);
    std::thread b(consume);
    std::thread c(consume);
    a.join();
    b.join();
    c.join();
    EXPECT_GT(refused, 0);
  }
}

TEST_P(LoaderLeases, LeasesOutliveTheirLoader) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    std::vector<DeviceBatch> held;
    {
      Loader loader(dataset_, *faulty_device_,
                    {.batch_size = kBatch,
                     .shuffle = true,
                     .residency = Residency::parse(way.residency),
                     .gather = way.gather,
                     .copy_limit_bytes = 0});
      held = take(loader, 4);
    }
    EXPECT_EQ(faulty_->live().registrations, 0U);
    EXPECT_EQ(faulty_->live().streams, 0U);
    for (const DeviceBatch& batch : held) expect_intact(batch);
    const Buffer pinned = pinned_->allocate(held[0].field(0).bytes);
    const auto indices = held[0].indices();
    stream_->copy(pinned.data(), held[0].field(0).data, pinned.size(), CopyDirection::d2h);
    held.clear();
    EXPECT_EQ(faulty_->live(), LiveHandles{});
    stream_->synchronize();
    std::vector<std::byte> expected(pinned.size());
    dataset_.gather(0, indices, expected);
    EXPECT_EQ(first_difference(pinned.bytes(), expected), -1);
  }
}

TEST_P(LoaderLeases, ASlotStaysUntilTheWorkOfEveryStreamItWasUsedOnIsDone) {
  for (const bool second : {false, true}) {
    for (const GatherPath gather : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
      SCOPED_TRACE(second ? "use_on" : "next");
      Loader loader(dataset_, *device_, {.batch_size = kBatch, .shuffle = true, .gather = gather});
      GatedStream gated(*device_);
      const Buffer pinned = pinned_->allocate(kBatch * kLeaseRow);
      auto batch = loader.next(second ? *stream_ : gated.stream());
      if (second) batch->use_on(gated.stream());
      std::byte* const slot = batch->field(0).data;
      const auto indices = batch->indices();
      gated.stream().copy(pinned.data(), slot, pinned.size(), CopyDirection::d2h);
      batch.reset();
      std::vector<DeviceBatch> later;
      while (later.empty() || later.back().field(0).data != slot) {
        later.clear();
        later = take(loader, 1);
      }
      const auto until = std::chrono::steady_clock::now() + 20ms;
      while (!stream_->query() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      EXPECT_FALSE(stream_->query()) << "the next batch of that slot is not there yet";
      gated.open();
      gated.stream().synchronize();
      std::vector<std::byte> expected(pinned.size());
      dataset_.gather(0, indices, expected);
      EXPECT_EQ(first_difference(pinned.bytes(), expected), -1);
      expect_intact(later.back());
    }
  }
}

TEST_P(LoaderLeases, MovingABatchMovesItsLease) {
  Loader loader(dataset_, *device_, limited(3));
  auto first = loader.next(*stream_);
  auto second = loader.next(*stream_);
  std::byte* const address = second->field(0).data;
  const auto third = loader.next(*stream_);
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), OutOfMemory);
  *first = std::move(*second);
  EXPECT_EQ(first->field(0).data, address);
  EXPECT_EQ(first->index(), 1U);
  DeviceBatch& itself = *first;
  *first = std::move(itself);
  EXPECT_EQ(first->index(), 1U);
  second->release();
  second.reset();
  const auto fourth = loader.next(*stream_);
  EXPECT_EQ(fourth->index(), 3U) << "the slot of what was assigned over came back";
  expect_intact(*first);
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), OutOfMemory);
  first->release();
  first->release();
  EXPECT_EQ(loader.next(*stream_)->index(), 4U) << "given back once";
}

TEST_P(LoaderLeases, ASlotWhoseLastUseCannotBeMarkedIsNotUsedAgain) {
  Loader loader(dataset_, *faulty_device_, limited(4));
  const Stream other = device_->create_stream();
  // All four are taken first, and the loader has found that it cannot make a fifth: it then creates no event
  // of a further slot meanwhile.
  auto kept = take(loader, 4);
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), OutOfMemory);
  std::byte* const slot = kept[0].field(0).data;
  std::byte* const second_slot = kept[1].field(0).data;
  kept[0].use_on(other);
  faulty_->fail(Entry::event_create);
  EXPECT_THROW(kept[0].release(), DeviceError);
  kept[1].use_on(other);
  faulty_->fail(Entry::event_create);
  kept.clear();
  for (int epoch = 0; epoch < 2; ++epoch) {
    while (const auto later = loader.next(*stream_)) {
      EXPECT_NE(later->field(0).data, slot);
      EXPECT_NE(later->field(0).data, second_slot);
      expect_intact(*later);
    }
  }
}

TEST_P(LoaderLeases, NextIsToldWhenTheLastSlotIsLost) {
  LoaderOptions patient = limited(1, 2, WhenFull::wait);
  patient.full_patience = std::chrono::hours(1);
  Loader loader(dataset_, *faulty_device_, patient);
  const Stream other = device_->create_stream();
  auto batch = loader.next(*stream_);
  batch->use_on(other);
  auto told = std::async(std::launch::async,
                         [&] { EXPECT_THROW(static_cast<void>(loader.next(other)), OutOfMemory); });
  faulty_->fail(Entry::event_create);
  EXPECT_THROW(batch->release(), DeviceError);
  EXPECT_EQ(told.wait_for(120s), std::future_status::ready) << "no lease is left that could end";
  loader.close();
}

TEST_P(LoaderLeases, NothingIsAllocatedInTheSteadyState) {
  const Dataset dataset({dataset_.reader(0), random_field("label", DType::int32, {}, 160, 2)});
  for (const Way& way : kWays) {
    for (const bool widen : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(way));
      const Stream other = device_->create_stream();
      {
        LoaderOptions options{.batch_size = kBatch,
                              .shuffle = true,
                              .residency = Residency::parse(way.residency),
                              .gather = way.gather,
                              .threads = 2};
        if (widen) options.fields = {{.name = "x", .to = DType::float32, .scale = {2.0F}}};
        Loader loader(dataset, *faulty_device_, options);
        const auto count = [&] {
          std::vector<std::size_t> calls;
          for (const Entry entry : {Entry::device_allocate, Entry::host_allocate, Entry::host_register,
                                    Entry::stream_create, Entry::event_create}) {
            calls.push_back(faulty_->calls(entry));
          }
          return calls;
        };
        std::vector<std::size_t> before;
        for (int epoch = 0; epoch < 5; ++epoch) {
          while (auto batch = loader.next(*stream_)) batch->use_on(other);
          if (epoch == 1) before = count();
        }
        EXPECT_EQ(count(), before);
      }
      EXPECT_EQ(faulty_->live(), LiveHandles{});
    }
  }
}

}  // namespace
}  // namespace penstock::testing
