#include "loader/loader_fixture.hpp"
#include "support/fork.hpp"

#include <penstock/loader/replay.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <set>

/// Rows that others write while they are sampled.
namespace penstock::testing {
namespace {

/// Every sample in a batch of its own. Drops the first, and overwrites the second when it is asked about its
/// batch.
class OverwrittenBatches final : public BatchSampler {
 public:
  explicit OverwrittenBatches(std::span<std::byte> samples) : samples_(samples) {}
  void start_epoch(std::uint64_t) override {}
  bool next(std::vector<std::uint64_t>& indices) override {
    indices.push_back(drawn_++ % 4);
    return true;
  }
  [[nodiscard]] std::uint64_t reading_epoch(std::uint64_t) const override { return drawn_ - 1; }
  [[nodiscard]] bool may_tear() const noexcept override { return true; }
  [[nodiscard]] bool is_whole(std::uint64_t batch) const override {
    if (batch == 1)
      std::ranges::fill(samples_.subspan(samples_.size() / 4, samples_.size() / 4), std::byte{0xEE});
    return batch != 0;
  }

 private:
  const std::span<std::byte> samples_;
  std::uint64_t drawn_ = 0;
};

class ReplayTest : public LoaderTest {
 protected:
  static std::vector<Field> fields(std::size_t words = 1) {
    return {{.name = "environment", .dtype = DType::uint32, .shape = {}},
            {.name = "step", .dtype = DType::int64, .shape = {words}}};
  }
  /// A row of which each word is `step`.
  static void add(ReplayRows& rows, std::uint32_t environment, std::int64_t step) {
    const std::vector<std::int64_t> words(rows.dataset().field(1).shape[0], step);
    rows.add({std::as_bytes(std::span(&environment, 1)).data(), std::as_bytes(std::span(words)).data()},
             std::array{environment});
  }
  Loader loader(const std::shared_ptr<ReplayRows>& rows, const ReplayOptions& options) {
    return Loader(rows->dataset(), *device_, sample_rows(rows, options));
  }
  /// The slots that 40 batches of 16 rows are of.
  std::set<std::uint64_t> sampled_slots(const std::shared_ptr<ReplayRows>& rows) {
    std::set<std::uint64_t> slots;
    Loader sampled = loader(rows, {.batch_size = 16});
    for (int i = 0; i < 40; ++i) {
      for (const std::uint64_t slot : sampled.next(*stream_)->indices()) slots.insert(slot);
    }
    return slots;
  }
  template <typename T>
  static std::vector<T> values(const std::vector<std::byte>& bytes) {
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
};
PENSTOCK_DEVICE_SUITE(ReplayTest);

TEST_P(ReplayTest, BatchesAreAskedAboutOnceTheyAreRead) {
  std::vector<std::byte> samples = random_bytes(4 * 65'536, 1);
  const std::vector<std::byte> before = samples;
  const Dataset data({read_array({.name = "x", .dtype = DType::uint8, .shape = {65'536}}, samples, nullptr)});
  Loader loader(data, *device_,
                {.batch_sampler = std::make_shared<OverwrittenBatches>(samples),
                 .gather = GatherPath::zero_copy,
                 .data_may_change = true,
                 .copy_limit_bytes = 0});
  const HostBatch second = read(*loader.next(*stream_));
  EXPECT_EQ(second.index, 1U);
  EXPECT_EQ(second.indices, std::vector<std::uint64_t>{1});
  EXPECT_EQ(first_difference(second.fields[0], std::span(before).subspan(65'536, 65'536)), -1);
}

TEST_P(ReplayTest, IsForOneDevice) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 10);
  const std::vector<Device> hosts{Device::open("host:0"), Device::open("host:1")};
  EXPECT_THROW(Loader(rows->dataset(), DeviceGroup(hosts), sample_rows(rows, {})), InvalidArgument);
}

TEST_P(ReplayTest, SamplesFollowOneEnvironmentAroundTheRing) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 50);
  Loader sampled = loader(rows, {.batch_size = 64, .offsets = {-2, 0, 1}});
  EXPECT_THROW((void)sampled.next(*stream_), InvalidArgument) << "there are no rows";
  std::set<std::int64_t> steps;
  for (std::int64_t step = 0; step < 700; ++step) {
    for (const std::uint32_t environment : {0U, 7U, ReplayRows::kEnvironments - 1}) {
      if (environment != 7 || step % 4 == 0) add(*rows, environment, step);
    }
    if (step < 3 || step % 50 != 0) continue;
    EXPECT_EQ(rows->size(), 50U);
    sampled.start_epoch(sampled.state().epoch + 1);
    const HostBatch batch = read(*sampled.next(*stream_));
    const auto environments = values<std::uint32_t>(batch.fields[0]);
    const auto got = values<std::int64_t>(batch.fields[1]);
    ASSERT_EQ(got.size(), 3 * 64U);
    for (std::size_t i = 0; i < got.size(); i += 3) {
      const std::int64_t each = environments[i] == 7 ? 4 : 1;
      EXPECT_EQ(environments[i], environments[i + 1]);
      EXPECT_EQ(environments[i], environments[i + 2]);
      EXPECT_EQ(got[i + 1] - got[i], 2 * each);
      EXPECT_EQ(got[i + 2] - got[i + 1], each);
      EXPECT_GT(got[i], step - 24) << "the latest 50 rows are of the latest 23 steps";
      steps.insert(step - got[i + 2]);
    }
  }
  EXPECT_TRUE(steps.contains(0)) << "the newest row";
  EXPECT_GE(*steps.rbegin(), 18) << "old rows";
}

TEST_P(ReplayTest, ABatchIsDroppedOnceItsRowsMayBeOverwritten) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 64);
  const std::shared_ptr<BatchSampler> sampler = sample_rows(rows, {}).batch_sampler;
  std::vector<std::uint64_t> indices;
  add(*rows, 0, 0);
  EXPECT_TRUE(sampler->next(indices));
  EXPECT_EQ(indices, std::vector<std::uint64_t>{0});
  const std::uint64_t first = sampler->reading_epoch(0);
  const std::uint64_t slots = rows->dataset().sample_count();
  for (std::uint64_t i = 1; i < slots; ++i) add(*rows, 0, 0);
  EXPECT_TRUE(sampler->is_whole(first));
  add(*rows, 0, 0);
  EXPECT_FALSE(sampler->is_whole(first));
  EXPECT_TRUE(sampler->next(indices));
  EXPECT_TRUE(sampler->is_whole(sampler->reading_epoch(0)));
}

TEST_P(ReplayTest, RowsAreDrawnWhileAllOfThemAreOverwritten) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 64);
  for (int i = 0; i < 64; ++i) add(*rows, 0, 0);
  const std::shared_ptr<BatchSampler> sampler = sample_rows(rows, {.batch_size = 200'000}).batch_sampler;
  std::atomic<bool> done{false};
  std::vector<std::jthread> writers;
  for (std::uint32_t writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      while (!done) add(*rows, writer, 0);
    });
  }
  std::vector<std::uint64_t> indices;
  EXPECT_NO_THROW((void)sampler->next(indices));
  done = true;
  EXPECT_EQ(indices.size(), 200'000U);
}

TEST_P(ReplayTest, AWriterThatStopsInARowHoldsUpNobody) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 8);
  const std::uint64_t slots = rows->dataset().sample_count();
  const auto add_rows = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) add(*rows, 1, 0);
  };
  add_rows(3);
  static std::atomic<bool>* is_within;
  is_within = static_cast<std::atomic<bool>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0));
  Child stuck([&] {
    std::signal(SIGSEGV, [](int) {
      *is_within = true;
      pause();
    });
    auto* const unreadable =
        static_cast<std::byte*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0));
    rows->add({unreadable, unreadable}, std::array{0U});
    return false;
  });
  while (!*is_within) std::this_thread::yield();
  EXPECT_EQ(sampled_slots(rows), (std::set<std::uint64_t>{0, 1, 2})) << "the fourth row is not there";
  add_rows(slots);
  EXPECT_FALSE(sampled_slots(rows).contains(3)) << "its writer lives";
  stuck.end(SIGKILL);
  add_rows(slots);
  EXPECT_EQ(sampled_slots(rows).size(), 8U);
  EXPECT_TRUE(sampled_slots(rows).contains(3));
}

TEST_P(ReplayTest, AForkedChildBeginsAnew) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 8);
  add(*rows, 0, 0);
  EXPECT_TRUE(succeeds_in_child([&] {
    add(*rows, 0, 1);
    return true;
  }));
  EXPECT_EQ(rows->size(), 2U);
  Loader sampled = loader(rows, {.offsets = {0, 1}});
  EXPECT_THROW((void)sampled.next(*stream_), InvalidArgument) << "they do not follow each other";
}

TEST_P(ReplayTest, NoRowIsTornUnderEightWriters) {
  const auto rows = std::make_shared<ReplayRows>(fields(512), 64);
  std::vector<std::unique_ptr<Child>> writers;
  for (std::int64_t writer = 1; writer <= 8; ++writer) {
    writers.push_back(std::make_unique<Child>([&rows, writer] {
      for (std::int64_t i = 0;; ++i) {
        add(*rows, 0, (writer << 40) + i);
        // Without a rest, they may drop batch after batch of a slow reader.
        if (i % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return true;
    }));
  }
  while (rows->size() < 64) std::this_thread::yield();
  Loader sampled = loader(rows, {.batch_size = 32});
  std::set<std::int64_t> seen;
  for (int i = 0; i < 500; ++i) {
    const auto words = values<std::int64_t>(read(*sampled.next(*stream_)).fields[1]);
    for (std::size_t row = 0; row < words.size(); row += 512) {
      const std::span all(words.data() + row, 512);
      ASSERT_EQ(std::ranges::count(all, all[0]), 512);
      seen.insert(all[0] >> 40);
    }
  }
  EXPECT_GT(seen.size(), 1U);
}

TEST_P(ReplayTest, RefusesWhatDoesNotFit) {
  const auto rows = std::make_shared<ReplayRows>(fields(), 8);
  const std::byte value{};
  EXPECT_THROW(rows->add({&value, &value}, std::array{ReplayRows::kEnvironments}), InvalidArgument);
  EXPECT_EQ(rows->size(), 0U);
  EXPECT_THROW(ReplayRows(fields(), std::uint64_t{1} << 60), OutOfMemory);
  EXPECT_THROW(ReplayRows(fields(1'000'000'000), 1'000'000), OutOfMemory);
  EXPECT_THROW(ReplayRows(fields(100'000), 8, rows->pages().file()), InvalidArgument);
  EXPECT_THROW((void)sample_rows(rows, {.offsets = {}}), InvalidArgument);
  EXPECT_THROW((void)sample_rows(rows, {.offsets = {-4, 4}}), InvalidArgument);
  EXPECT_NO_THROW((void)sample_rows(rows, {.offsets = {-4, 3}}));
}

}  // namespace
}  // namespace penstock::testing
