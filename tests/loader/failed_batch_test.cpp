#include "data/support.hpp"
#include "loader/faulty_fixture.hpp"
#include "support/gate.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

/// Copies still in flight of a batch, or of resident samples, that failed half-way.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// How the loader learns when the copies of a failed batch are over.
enum class Learns { by_event, by_waiting, never };

class LoaderFailedBatch : public FaultyLoaderTest {
 protected:
  static constexpr std::size_t kSlotBytes = kBatch * 512 + 256;

  /// `x` is copied as it is, and then a kernel widens `y`.
  static LoaderOptions options() {
    return {.batch_size = kBatch,
            .shuffle = true,
            .gather = GatherPath::host,
            .fields = {{.name = "y", .to = DType::float32}},
            .device_budget_bytes = 3 * kSlotBytes,
            .threads = 1};
  }

  void a_later_batch_is_not_written_over(Learns learns) {
    std::optional<Loader> loader;
    GatedStream gate(*device_);
    std::atomic<bool> fails{false};
    faulty_->hold_back_next_copy(gate.word());
    faulty_->fail(Entry::gather, 1, 1, [&] {
      const std::size_t before = faulty_->calls(Entry::event_record);
      fails = true;
      while (faulty_->calls(Entry::event_record) == before) std::this_thread::yield();
      if (learns != Learns::by_event) faulty_->fail(Entry::event_record);
      if (learns == Learns::never) faulty_->fail(Entry::stream_synchronize);
    });
    loader.emplace(dataset_, *faulty_device_, options());
    while (!fails) std::this_thread::yield();
    // The request records an event too, which must not fail.
    auto told = std::async(std::launch::async,
                           [&] { EXPECT_THROW(static_cast<void>(loader->next(*stream_)), DeviceError); });
    const auto is_told = [&] { return told.wait_for(0s) == std::future_status::ready; };
    while (!is_told() && faulty_->calls(Entry::stream_synchronize) == 0) std::this_thread::yield();
    if (learns == Learns::by_waiting && faulty_->calls(Entry::stream_synchronize) != 0) gate.open();
    told.get();

    loader->start_epoch(1);
    const DeviceBatch batch = std::move(*loader->next(*stream_));
    if (learns == Learns::by_event) {
      EXPECT_FALSE(is_done_soon(*stream_)) << "the slot's earlier copy is held back";
    } else {
      stream_->synchronize();
    }
    gate.open();
    loader->close();
    expect_stored(Dataset({dataset_.reader(0)}), read(batch));
  }

  const Dataset dataset_{
      {random_field("x", DType::uint8, {512}, 80, 1), random_field("y", DType::uint8, {4}, 80, 2)}};
};
PENSTOCK_DEVICE_SUITE(LoaderFailedBatch);

TEST_P(LoaderFailedBatch, ItsCopiesAreOverBeforeItsSlotIsFilledAgain) {
  a_later_batch_is_not_written_over(Learns::by_event);
}

TEST_P(LoaderFailedBatch, ItsCopiesAreOverBeforeASlotThatWasLeasedIsFilledAgain) {
  Loader loader(dataset_, *faulty_device_, options());
  read_epoch(loader);
  // Two batches of the next epoch are ahead.
  while (faulty_->calls(Entry::gather) < 12) std::this_thread::yield();
  GatedStream gate(*device_);
  faulty_->hold_back_next_copy(gate.word());
  faulty_->fail(Entry::gather);
  EXPECT_THROW(for (int i = 0; i < 20; ++i) static_cast<void>(loader.next(*stream_)), DeviceError);
  loader.start_epoch(5);
  const DeviceBatch batch = std::move(*loader.next(*stream_));
  EXPECT_FALSE(is_done_soon(*stream_)) << "the slot's earlier copy is held back, and its users are done";
  gate.open();
  loader.close();
  expect_stored(Dataset({dataset_.reader(0)}), read(batch));
}

TEST_P(LoaderFailedBatch, CopiesThatCannotBeMarkedAreWaitedFor) {
  a_later_batch_is_not_written_over(Learns::by_waiting);
}

TEST_P(LoaderFailedBatch, ASlotThatMayStillBeWrittenIsNotFilledAgain) {
  a_later_batch_is_not_written_over(Learns::never);
}

TEST_P(LoaderFailedBatch, ItCostsNeitherASlotNorARecordOfTimes) {
  Loader loader(dataset_, *faulty_device_, options());
  for (int failures = 0; failures < 140; ++failures) {  // more than there are records
    faulty_->fail(Entry::gather);
    EXPECT_THROW(for (int i = 0; i < 20; ++i) static_cast<void>(loader.next(*stream_)), DeviceError);
    loader.restore(loader.state());
  }
  read_epoch(loader);
  EXPECT_EQ(loader.stats().slots, 3U);
  EXPECT_EQ(read_epoch(loader).size(), 10U);
  EXPECT_EQ(loader.stats().timed_batches, loader.stats().batches);
}

TEST_P(LoaderFailedBatch, ItsSlotGoesBackWhileAnotherIsLetGo) {
  LoaderOptions roomy = options();
  roomy.device_budget_bytes = 6 * kSlotBytes;
  Loader loader(dataset_, *faulty_device_, roomy);
  auto held = loader.next(*stream_);
  // Relaxed, so that only the ring's lock orders the threads' accesses to its slots.
  std::atomic<bool> fails{false};
  std::atomic<bool> let_go{false};
  faulty_->fail(Entry::gather, 1, 1, [&] {
    fails.store(true, std::memory_order_relaxed);
    while (!let_go.load(std::memory_order_relaxed)) std::this_thread::yield();
    throw Error("asked for");
  });
  auto told = std::async(std::launch::async, [&] {
    EXPECT_THROW(for (int i = 0; i < 20; ++i) static_cast<void>(loader.next(*stream_)), Error);
  });
  while (!fails.load(std::memory_order_relaxed)) std::this_thread::yield();
  held.reset();
  let_go.store(true, std::memory_order_relaxed);
  told.get();
  loader.restore(loader.state());
  EXPECT_TRUE(loader.next(*stream_));
}

TEST_P(LoaderFailedBatch, RowsUnderWayToTheDeviceAreReadBeforeTheirMemoryGoes) {
  constexpr std::uint64_t kRowsOfABuffer = 8;
  std::optional<Loader> loader;
  GatedStream gate(*device_);
  std::atomic<std::size_t> waits{0};
  std::size_t unlocked = 0;
  const Dataset dataset(
      {read_callback({.name = "x", .dtype = DType::uint8, .shape = {std::size_t{1} << 20}},
                     kRowsOfABuffer + 1, [&](std::uint64_t index, std::span<std::byte> out) {
                       if (index < kRowsOfABuffer) return out.size();
                       unlocked = faulty_->calls(Entry::host_unregister);
                       waits = faulty_->calls(Entry::event_synchronize);
                       throw std::runtime_error("disk on fire");
                     })});
  faulty_->hold_back_next_copy(gate.word());
  loader.emplace(dataset, *faulty_device_, LoaderOptions{.residency = Residency::parse("all"), .threads = 1});
  const auto unlocks = [&] { return faulty_->calls(Entry::host_unregister) - unlocked; };
  while (waits == 0) std::this_thread::yield();
  while (faulty_->calls(Entry::event_synchronize) == waits && unlocks() == 0) std::this_thread::yield();
  EXPECT_EQ(unlocks(), 0U) << "a copy still reads the memory";
  gate.open();
  EXPECT_THROW(static_cast<void>(loader->next(*stream_)), Error);
}

TEST_P(LoaderFailedBatch, FactorsUnderWayAreReadBeforeTheirMemoryGoes) {
  GatedStream gate(*device_);
  faulty_->hold_back_next_copy(gate.word());
  faulty_->fail(Entry::stream_synchronize);
  LoaderOptions scaled = options();
  scaled.device_budget_bytes = 0;
  scaled.fields[0].scale = {2.0F};
  auto told = std::async(std::launch::async,
                         [&] { EXPECT_THROW(Loader(dataset_, *faulty_device_, scaled), DeviceError); });
  const auto unlocks = [&] { return faulty_->calls(Entry::host_unregister); };
  const auto is_told = [&] { return told.wait_for(0s) == std::future_status::ready; };
  while (faulty_->calls(Entry::event_synchronize) == 0 && unlocks() == 0 && !is_told()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(unlocks(), 0U) << "a copy still reads the memory";
  gate.open();
  told.get();
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(LoaderFailedBatch, AFailureOfTheLastResidentSamplesIsTold) {
  const Dataset computed({as_callback(dataset_.reader(0))});
  faulty_->fail(Entry::stream_synchronize);
  Loader loader(computed, *faulty_device_, {.batch_size = 4, .residency = Residency::parse("all")});
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), DeviceError);
  loader.restore(loader.state());
  EXPECT_EQ(loader.next(*stream_)->index(), 0U);
}

TEST_P(LoaderFailedBatch, AFileCutShortBeforeItIsResidentIsAnError) {
  const test::TempDirectory directory;
  const auto path = directory.write("x.npy", test::npy("|u1", "(40, 4096)", random_bytes(40 * 4096, 3)));
  const Dataset dataset({read_npy(path, {.load_limit = 0})});
  std::filesystem::resize_file(path, 4096);
  Loader loader(dataset, *device_, {.batch_size = 4, .residency = Residency::parse("all")});
  try {
    static_cast<void>(loader.next(*stream_));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cut short"));
  }
}

TEST(LoaderFailedChunk, AnEarlierOneOfResidentRowsIsTold) {
  const std::vector<std::byte> zeros(std::size_t{65} << 20);
  const Dataset dataset({read_array({.name = "x", .dtype = DType::uint8, .shape = {std::size_t{1} << 20}},
                                    std::span(zeros), nullptr)});
  const auto backend = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  backend->fail(Entry::copy);
  Loader loader(dataset, Device(backend), {.residency = Residency::parse("all"), .threads = 1});
  EXPECT_THROW(static_cast<void>(loader.next(Device(backend).create_stream())), DeviceError);
}

}  // namespace
}  // namespace penstock::testing
