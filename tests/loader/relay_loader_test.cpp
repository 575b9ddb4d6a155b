// A loader that feeds one device over the links of several.

#include "loader/destination_fixture.hpp"
#include "loader/listed_batches.hpp"
#include "loader/relay_watch.hpp"
#include "support/gate.hpp"
#include "transfer/gives_way_fixture.hpp"

#include <algorithm>
#include <numeric>

namespace penstock::testing {
namespace {

/// A group whose member `receiver_` alone gets the batches.
class RelayLoaderTest : public DestinationTest {
 protected:
  [[nodiscard]] Loader relay(const Dataset& data, const LoaderOptions& options, GroupLinks links = {}) const {
    return Loader(data, Destination::relayed(group(), receiver_, std::move(links)), options);
  }
  [[nodiscard]] std::span<const Stream> stream() const { return std::span(streams_).subspan(receiver_, 1); }
  std::optional<DeviceBatch> next(Loader& loader) {
    auto batches = loader.next(stream());
    if (!batches) return std::nullopt;
    EXPECT_EQ(batches->size(), 1u);
    return std::move(batches->front());
  }
  std::vector<HostBatches> read_epoch(Loader& loader) {
    std::vector<HostBatches> batches;
    while (const auto batch = loader.next(stream())) batches.push_back(read(*batch, receiver_));
    return batches;
  }
  static std::vector<std::size_t> carried(const Loader& loader) {
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i < loader.destination().group().size(); ++i) {
      bytes.push_back(loader.member_stats(i).link_bytes);
    }
    return bytes;
  }

  std::size_t receiver_ = 0;
};
PENSTOCK_GROUP_SUITE(RelayLoaderTest);

TEST_P(RelayLoaderTest, EachByteCrossesOneLinkAndAllLinksCarry) {
  const std::size_t samples = 4000;
  const Dataset data({random_field("images", DType::uint8, {64}, samples, 1)});
  receiver_ = size() - 1;
  Loader loader = relay(data, {.batch_size = 60, .gather = GatherPath::host});
  const std::vector<HostBatches> batches = read_epoch(loader);
  std::size_t sum = 0;
  for (const std::size_t bytes : carried(loader)) {
    EXPECT_GE(bytes, samples * 64 / size() * 9 / 10);
    sum += bytes;
  }
  // Some batches of the next epoch are read ahead.
  EXPECT_GE(sum, samples * 64);
  EXPECT_LE(sum, samples * 64 * 11 / 10);
  const FeedStatistics statistics = loader.stats();
  EXPECT_EQ(statistics.batches, batches.size());
  EXPECT_EQ(statistics.samples, samples);
  EXPECT_EQ(statistics.delivered_bytes, samples * 64);
  EXPECT_GE(statistics.link_bytes, sum);
  const std::string links = loader.describe().back();
  for (const Device& device : plain_) EXPECT_NE(links.find(device.info().spec), std::string::npos) << links;
  EXPECT_EQ(links.find(" 0 B"), std::string::npos) << links;
}

TEST_P(RelayLoaderTest, APeerWithoutMemorySitsOut) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 25, .shuffle = true};
  const DeviceGroup members = group();  // it reaches the others while it has memory
  faulty_.back()->fail(Entry::device_allocate, 1, FaultyBackend::kForever,
                       [] { throw OutOfMemory("a test's memory", 1, 1, 0); });
  Loader loader(data, Destination::relayed(members, receiver_), options);
  Sampler sampler = sampler_of(data, options);
  expect_rest(data, sampler, read_epoch(loader));
  EXPECT_EQ(carried(loader).back(), 0u);
  EXPECT_GE(carried(loader).front(), 203u * data.sample_bytes() / size());
  loader.start_epoch(4);
  sampler.start_epoch(4);
  expect_rest(data, sampler, read_epoch(loader));
  receiver_ = size() - 1;
  EXPECT_THROW(Loader(data, Destination::relayed(members, receiver_), options), OutOfMemory);
}

TEST_P(RelayLoaderTest, IfNoPeerReachesTheReceiverItsOwnLinkCarriesAll) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 25, .shuffle = true};
  for (std::size_t i = 1; i < size(); ++i) faulty_[i]->fail(Entry::enable_peer, 1, FaultyBackend::kForever);
  Loader loader = relay(data, options);
  Sampler sampler = sampler_of(data, options);
  expect_rest(data, sampler, read_epoch(loader));
  for (std::size_t i = 1; i < size(); ++i) EXPECT_EQ(loader.member_stats(i).batches, 0u);
  // The next epoch is read ahead meanwhile: what the receiver's link has carried only grows.
  const std::size_t before = carried(loader).front();
  const std::size_t all = loader.stats().link_bytes;
  const std::size_t after = carried(loader).front();
  EXPECT_GE(before, data.sample_count() * data.sample_bytes());
  EXPECT_GE(all, before);
  EXPECT_LE(all, after);
}

TEST_P(RelayLoaderTest, AMeasurementSaysWhetherRelaysPayAndGivesTheShares) {
  const Dataset data({random_field("images", DType::uint8, {64}, 1200, 1)});
  const LoaderOptions options{.batch_size = 120, .shuffle = true, .gather = GatherPath::host};
  GroupLinks links{.measured = GroupProfile::named_after(group())};
  for (GroupProfile::Member& member : links.measured->members) {
    member.link = 1e9;
    member.relayed = 2e9;
  }
  links.measured->members[0].link = 3e9;
  links.measured->members[0].relayed = 4e9;
  const auto share = [&] {
    Loader loader = relay(data, options, links);
    Sampler sampler = sampler_of(data, options);
    expect_rest(data, sampler, read_epoch(loader));
    const std::vector<std::size_t> bytes = carried(loader);
    return static_cast<double>(bytes[0]) /
           static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), 0u));
  };
  EXPECT_NEAR(share(), 3.0 / static_cast<double>(size() + 2), 0.05);
  links.measured->members[0].relayed = 3e9;
  EXPECT_EQ(share(), 1.0);
}

TEST_P(RelayLoaderTest, RefusesWhatHasNoMeaning) {
  const Dataset data = dataset();
  EXPECT_THROW((void)relay(data, {.residency = Residency::parse("0.5")}), InvalidArgument);
  EXPECT_THROW((void)relay(data, {.data_may_change = true}), InvalidArgument);
  receiver_ = size();
  EXPECT_THROW((void)relay(data, {}), InvalidArgument);
  receiver_ = 0;
  Loader loader = relay(data, {.batch_size = 4});
  EXPECT_THROW((void)loader.next(streams_), InvalidArgument);
}

/// Parts that are large enough to be judged.
class RelayLoaderPaceTest : public GivesWayTest<RelayLoaderTest> {
 protected:
  static constexpr std::size_t kSample = std::size_t{128} << 10;
  static constexpr std::size_t kPart = 8 * kSample;
  static constexpr std::uint64_t kBatches = 32;
  /// The most that a member carries in an epoch if it gives way: two parts, half of a batch if another does
  /// too.
  static constexpr std::size_t kProbes = 2 * kPart * 3 / 2;

  void SetUp() override {
    RelayLoaderTest::SetUp();
    bytes_.assign(64 * kSample, std::byte{7});
    const std::byte* const memory = bytes_.data();
    // The same few bytes for all samples.
    data_.emplace(std::vector<FieldReaderPtr>{
        read_callback({.name = "images", .dtype = DType::uint8, .shape = {kSample}}, kBatches * 24,
                      [memory](std::uint64_t index, std::span<std::byte> to) {
                        std::copy_n(memory + index % 64 * kSample, kSample, to.data());
                        return to.size();
                      })});
    make_loader();
  }
  void make_loader(std::optional<GroupProfile> measured = std::nullopt) {
    loader_.emplace(
        relay(*data_, {.batch_size = 24, .prefetch_depth = 1}, {.measured = std::move(measured)}));
  }
  /// In an epoch.
  std::vector<std::size_t> carried_once() override {
    const std::vector<std::size_t> before = carried(*loader_);
    loader_->start_epoch(++epoch_ * 2);
    std::uint64_t batches = 0;
    while (next(*loader_)) ++batches;
    EXPECT_EQ(batches, kBatches);
    std::vector<std::size_t> bytes = carried(*loader_);
    for (std::size_t i = 0; i < size(); ++i) bytes[i] -= before[i];
    return bytes;
  }
  [[nodiscard]] std::size_t least_share() const override { return kBatches * kPart * 3 / 4; }

  std::vector<std::byte> bytes_;
  std::optional<Dataset> data_;
  std::optional<Loader> loader_;
  std::uint64_t epoch_ = 0;
};
PENSTOCK_GIVES_WAY_SUITE(RelayLoaderPaceTest);

TEST_P(RelayLoaderPaceTest, AMemberWhoseWiresOthersUseGivesWayUntilTheyAreGone) {
  expect_gives_way_until_the_others_are_gone(kPart, kProbes);
}

TEST_P(RelayLoaderPaceTest, GivesWayWithinAFewBatches) {
  expect_gives_way_soon(kBatches / 2 * kPart, 1, kProbes);
}

TEST_P(RelayLoaderPaceTest, GivesWayWithinItsFirstBatchesIfTheWaysWereMeasured) {
  set_clock_rates(1000);
  EXPECT_GE(carried_once()[1], least_share()) << "it has seen nothing else";
  make_loader(measured());
  const std::vector<std::size_t> carried = carried_once();
  for (const std::size_t i : {1u, 2u}) EXPECT_LE(carried[i], kBatches / 2 * kPart);
  set_clock_rates(1);
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
}

TEST_P(RelayLoaderPaceTest, AMemberWhoseWayIsBusyFromTheBeginningGivesWay) {
  const Buffer there = poisoned(1, 2 * kPart);
  const Buffer elsewhere = poisoned(2, 6 * kPart);
  const Traffic traffic(plain_[1], elsewhere.data(), there.data(), 2 * kPart, CopyDirection::d2d);
  make_loader(measured());
  EXPECT_TRUE(soon([&](const auto& carried) { return carried[1] <= kProbes; }));
  EXPECT_TRUE(soon_carries_its_share(2)) << "its wires are free";
}

TEST_P(RelayLoaderPaceTest, KeepsItsShareIfTheReceiversLinkIsAsSlow) {
  expect_keeps_its_share_if_all_are_slow(kPart);
}

TEST_P(RelayLoaderPaceTest, PushesThatDoNotCrossTheHostAreNotSlowWithIt) {
  for (const auto& member : faulty_) member->claim_memory_of_its_own();
  make_loader();
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
  for (const auto& member : faulty_) member->set_clock_rate(1000);
  const auto gives_way = [](const auto& carried) { return carried[1] <= kProbes && carried[2] <= kProbes; };
  EXPECT_TRUE(soon(gives_way)) << "all seem slow, also the receiver's link";
}

TEST_P(RelayLoaderPaceTest, SmallPartsAreNotJudged) {
  loader_.emplace(relay(*data_, {.batch_size = 21, .prefetch_depth = 1}));
  loader_->start_epoch(1);
  for (int i = 0; i < 10; ++i) (void)next(*loader_);
  set_clock_rates(1000);
  while (next(*loader_)) {
  }
  for (const std::size_t i : {1u, 2u}) EXPECT_GE(carried(*loader_)[i], least_share());
  set_clock_rates(1);
}

/// A link of 0.1 GB/s and a way of 1 GB/s, whose copies have a latency of 9 ms. The clocks run slow, so that
/// it seems to be 9 µs, and the wires a thousand times as fast.
class RelayLoaderSizesTest : public RelayLoaderTest {
 protected:
  static constexpr std::size_t kSample = std::size_t{1} << 20;
  static constexpr std::size_t kSmallBatches = 32;

  void SetUp() override {
    RelayLoaderTest::SetUp();
    for (const auto& member : faulty_) member->set_clock_rate(kClockRate);
    const auto fill = [](std::uint64_t, std::span<std::byte> to) {
      std::ranges::fill(to, std::byte{7});
      return to.size();
    };
    const Dataset data(std::vector<FieldReaderPtr>{
        read_callback({.name = "images", .dtype = DType::uint8, .shape = {kSample}}, kListedSamples, fill)});
    std::map<std::uint64_t, Batches> epochs{{0, Batches(4, std::vector<std::uint64_t>(16))}};
    for (std::uint64_t e = 1; e < 50; ++e) epochs[e] = Batches(kSmallBatches, {1, 2});
    loader_.emplace(relay(
        data,
        {.batch_size = 16, .batch_sampler = std::make_shared<ListedBatches>(epochs), .prefetch_depth = 1}));
  }
  /// The bytes that the neighbour carries in an epoch.
  std::size_t relayed_once() {
    const std::size_t before = carried(*loader_)[1];
    while (next(*loader_)) {
    }
    return carried(*loader_)[1] - before;
  }
  template <typename Expected>
  [[nodiscard]] bool soon(Expected&& expected) {
    for (int i = 0; i < 12; ++i) {
      if (expected(relayed_once())) return true;
    }
    return false;
  }

  static constexpr double kClockRate = 1e-3;
  std::optional<Loader> loader_;
};
INSTANTIATE_TEST_SUITE_P(, RelayLoaderSizesTest,
                         ::testing::Values(GroupCase{"HostLatency",
                                                     {"host:0,memory=1GiB,link=0.1,peer=1,latency=9000",
                                                      "host:1,memory=1GiB,link=0.1,peer=1,latency=9000"}}),
                         [](const auto& each) { return each.param.name; });

TEST_P(RelayLoaderSizesTest, SmallPartsAreNotComparedWithLargeOnes) {
  EXPECT_GE(relayed_once(), 4 * 8 * kSample);
  EXPECT_TRUE(soon([](std::size_t relayed) { return relayed >= kSmallBatches * kSample * 3 / 4; }));
  faulty_[1]->set_clock_rate(30 * kClockRate);
  EXPECT_TRUE(soon([](std::size_t relayed) { return relayed <= 3 * kSample; })) << "small parts are judged";
}

/// On a link of 1 byte a second, transfers of one byte.
std::vector<BatchTimes> transfers(const std::vector<std::pair<double, double>>& spans) {
  std::vector<BatchTimes> times;
  for (const auto& [begin, end] : spans) {
    times.push_back({.batch = times.size(), .link_bytes = 1, .transfer_begin = begin, .transfer_end = end});
  }
  return times;
}

std::vector<double> link_rates(const std::vector<std::pair<double, double>>& spans) {
  const std::vector<BatchTimes> times = transfers(spans);
  std::vector<double> rates;
  for (std::size_t i = 0; i < times.size(); ++i) rates.push_back(link_rate_of(times, i).rate);
  return rates;
}

TEST(RelayWatch, TellsTheRateOfALinkThatTransfersShare) {
  using Rates = std::vector<double>;
  EXPECT_EQ(link_rates({{0, 1}, {1, 2}, {5, 6}, {6.5, 8.5}}), (Rates{1, 1, 1, 0.5}));
  // Two at a time, each at half of the rate.
  const Rates shared =
      link_rates({{0, 1.5}, {0.5, 2.5}, {1.5, 3.5}, {2.5, 4.5}, {3.5, 5.5}, {4.5, 6.5}, {5.5, 7.5}});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(shared[i], 6 / 6.5) << "with those after it";
  EXPECT_EQ(shared[6], 6 / 7.0) << "without the first";
  EXPECT_EQ(link_rates({{1, 3}, {0, 1}})[1], 2 / 3.0) << "the second came first";
  EXPECT_EQ(link_rates({{0, 2}, {0, 2}}), (Rates{1, 1}));
  EXPECT_EQ(link_rates({{1, 1}})[0], ChunkRates::kUnknown);
}

TEST(RelayWatch, ARateIsFinalOnceNoLaterTransferMayRaiseIt) {
  const auto is_final = [](const std::vector<std::pair<double, double>>& spans, std::size_t place) {
    return link_rate_of(transfers(spans), place).is_final;
  };
  EXPECT_FALSE(is_final({{0, 2}}, 0));
  EXPECT_FALSE(is_final({{0, 2}, {1, 3}}, 0));
  EXPECT_TRUE(is_final({{0, 2}, {1, 3}, {3, 5}}, 0));
  EXPECT_TRUE(is_final({{0, 2}, {1, 3}, {3, 5}}, 1));
  EXPECT_FALSE(is_final({{0, 2}, {1, 3}, {3, 5}}, 2));
  const std::vector<std::pair<double, double>> six{{0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 6}, {5, 7}};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(is_final(six, i)) << i;
  EXPECT_FALSE(is_final({six.begin(), six.end() - 1}, 4));
}

/// The least that is judged.
constexpr std::uint64_t kJudgedPart = std::uint64_t{1} << 20;

/// The account of a loader's parts. Each overlaps with the ones around it, or none does.
class PulledParts {
 public:
  std::vector<BatchTimes>& pull(std::uint64_t epoch, std::uint64_t batch, std::uint64_t bytes, double seconds,
                                bool overlaps = false) {
    times_.push_back({.epoch = epoch,
                      .batch = batch,
                      .link_bytes = bytes,
                      .transfer_begin = now_,
                      .transfer_end = now_ + (overlaps ? 2 : 1) * seconds});
    now_ += (overlaps ? 1 : 2) * seconds;
    return times_;
  }
  /// Later ones do not overlap with those before.
  std::vector<BatchTimes>& pause() {
    now_ += 100;
    return times_;
  }

 private:
  std::vector<BatchTimes> times_;
  double now_ = 0;
};

TEST(OwnLinkWatch, SeesEachLargePartOnce) {
  OwnLinkWatch watch;
  PulledParts parts;
  const auto pull = [&](std::uint64_t epoch, std::uint64_t batch, std::uint64_t bytes, double seconds) {
    watch.see(parts.pull(epoch, batch, bytes, seconds));
    return watch.pace();
  };
  EXPECT_EQ(pull(0, 7, kJudgedPart, 1), 1);
  EXPECT_EQ(pull(1, 0, kJudgedPart, 4), 1);
  EXPECT_EQ(pull(1, 1, kJudgedPart - 1, 4), 1) << "one is slow";
  watch.see(parts.pause());
  EXPECT_EQ(watch.pace(), 1) << "the same parts";
  EXPECT_EQ(pull(1, 2, 2 * kJudgedPart, 4), 1) << "the one before is too small";
  EXPECT_EQ(pull(1, 3, kJudgedPart, 4), 0.5);
  EXPECT_EQ(pull(1, 4, kJudgedPart, 4), 0.25);
}

// Two at a time, each at half of the rate: so the first seems to be half as fast as the link, if those after
// it are not known.
TEST(OwnLinkWatch, IsNotSlowAtAnEpochsBeginning) {
  OwnLinkWatch watch;
  PulledParts parts;
  for (std::uint64_t batch = 0; batch < 3; ++batch) watch.see(parts.pull(0, batch, kJudgedPart, 1));
  for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
    parts.pause();
    for (std::uint64_t batch = 0; batch < 9; ++batch) {
      watch.see(parts.pull(epoch, batch, kJudgedPart, 1, true));
      EXPECT_GE(watch.pace(), 6 / 7.0) << epoch << " " << batch;
    }
  }
  parts.pause();
  for (std::uint64_t batch = 0; batch < 6; ++batch) watch.see(parts.pull(4, batch, kJudgedPart, 4, true));
  EXPECT_LE(watch.pace(), 0.25) << "they are slow";
}

TEST(LinkWatch, NotesAtOnceThatALinkIsFast) {
  PulledParts parts;
  for (std::uint64_t batch = 0; batch < 3; ++batch) parts.pull(0, batch, kJudgedPart, 1);
  for (const bool at_once : {false, true}) {
    PulledParts later = parts;
    LinkWatch watch(at_once);
    ChunkRates rates;
    watch.see(later.pull(0, 3, kJudgedPart, 9), rates);
    EXPECT_EQ(rates.best(), kJudgedPart);
    for (const std::uint64_t batch : {4, 5, 6}) watch.see(later.pull(0, batch, kJudgedPart, 9), rates);
    EXPECT_TRUE(rates.is_below(1));
    watch.see(later.pull(0, 7, kJudgedPart, 1), rates);
    EXPECT_EQ(rates.is_below(1), !at_once);
    watch.see(later.pull(0, 8, kJudgedPart, 9), rates);
    EXPECT_FALSE(rates.is_below(1));
  }
}

TEST(LinkWatch, NothingIsFastBeforeAnyRateIsKnown) {
  LinkWatch watch(true);
  ChunkRates rates;
  PulledParts parts;
  watch.see(parts.pull(0, 0, kJudgedPart, 1, true), rates);
  EXPECT_EQ(rates.best(), 0);
}

// 50 GB/s, and 10 µs before each.
TEST(LinkWatch, SmallPartsAreNotComparedWithLargeOnes) {
  LinkWatch watch(false);
  ChunkRates rates;
  PulledParts parts;
  const auto pull = [&](std::uint64_t batch, std::uint64_t bytes, double slower = 1) {
    watch.see(parts.pull(0, batch, bytes, slower * (10e-6 + static_cast<double>(bytes) / 50e9)), rates);
  };
  for (std::uint64_t batch = 0; batch < 3; ++batch) pull(batch, 16 * kJudgedPart);
  for (std::uint64_t batch = 3; batch < 9; ++batch) pull(batch, kJudgedPart);
  EXPECT_FALSE(rates.is_below(1));
  EXPECT_GE(rates.pace(), 0.95);
  for (std::uint64_t batch = 9; batch < 13; ++batch) pull(batch, kJudgedPart, 2);
  EXPECT_TRUE(rates.is_below(1));
}

}  // namespace
}  // namespace penstock::testing
