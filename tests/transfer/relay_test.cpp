// Members that relay give way to others. The links are modelled, so that others on them take their time.

#include "support/comes_true.hpp"
#include "transfer/gives_way_fixture.hpp"

#include <chrono>
#include <thread>

namespace penstock::testing {
namespace {

constexpr std::size_t kRelayChunk = 256 * 1024;
constexpr std::size_t kChunks = 80;
// One at the start, and one for each 16 chunks that others carry; each is half a chunk.
constexpr std::size_t kProbes = (1 + kChunks / 16) * kRelayChunk / 2;

class RelayTest : public GivesWayTest<GroupTest> {
 protected:
  void SetUp() override {
    GroupTest::SetUp();
    if (IsSkipped()) return;
    make_engine();
    data_ = random_bytes(kChunks * kRelayChunk, 1);
    locked_.emplace(plain_, data_);
    received_.emplace(poisoned(0, data_.size()));
  }

  void make_engine(std::optional<GroupProfile> measured = std::nullopt) {
    engine_.emplace(
        DeviceGroup(devices_),
        GroupOptions{.measured = std::move(measured), .threads = 2, .chunk_bytes = kRelayChunk, .slots = 2});
  }

  std::vector<std::size_t> carried_once() override {
    poison(0, *received_);
    const GroupPiece whole{locked_->data(), 0, data_.size()};
    std::vector<std::size_t> carried = carried_of({&whole, 1});
    EXPECT_EQ(first_difference(read(0, *received_, data_.size()), data_), -1);
    return carried;
  }
  std::vector<std::size_t> carried_of(std::span<const GroupPiece> pieces) {
    const std::vector<std::size_t> before = engine_->carried();
    engine_->relay(0, received_->data(), pieces).synchronize();
    std::vector<std::size_t> carried = engine_->carried();
    for (std::size_t i = 0; i < size(); ++i) carried[i] -= before[i];
    return carried;
  }

  [[nodiscard]] std::size_t least_share() const override { return kChunks * kRelayChunk / 5; }

  std::optional<GroupEngine> engine_;
  std::vector<std::byte> data_;
  std::optional<LockedForAll> locked_;
  std::optional<Buffer> received_;
};
PENSTOCK_GIVES_WAY_SUITE(RelayTest);

TEST_P(RelayTest, AMemberWhoseWiresOthersUseGivesWayUntilTheyAreGone) {
  expect_gives_way_until_the_others_are_gone(kRelayChunk, kProbes);
}

TEST_P(RelayTest, GivesWayWithinAFewChunks) {
  // After the first probe there is another.
  expect_gives_way_soon(kProbes + 6 * kRelayChunk, kRelayChunk / 2 + 1, kProbes);
}

TEST_P(RelayTest, GivesWayWithinItsFirstChunksIfTheRatesWereMeasured) {
  set_clock_rates(1000);
  const auto carries_its_share = [&](const std::vector<std::size_t>& carried) {
    make_engine();  // for the next try, if this one failed
    return carried[1] >= least_share();
  };
  EXPECT_TRUE(soon(carries_its_share)) << "it has seen nothing else";
  make_engine(measured());
  const std::vector<std::size_t> carried = carried_once();
  for (const std::size_t i : {1u, 2u}) EXPECT_LE(carried[i], kProbes + 6 * kRelayChunk);
  set_clock_rates(1);
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
}

TEST_P(RelayTest, AMemberWhoseLinkIsBusyFromTheBeginningGivesWay) {
  const Buffer elsewhere = poisoned(1, 3 * kRelayChunk);
  const LockedForAll host(plain_, kRelayChunk);
  const Traffic traffic(plain_[1], elsewhere.data(), host.data(), kRelayChunk, CopyDirection::h2d);
  make_engine(measured());
  EXPECT_TRUE(soon([&](const auto& carried) { return carried[1] <= kProbes; }));
  EXPECT_TRUE(soon_carries_its_share(2)) << "its wires are free";
}

TEST_P(RelayTest, KeepsItsShareIfAllAreSlowerThanTheyWereMeasured) {
  for (const auto& member : faulty_) member->set_clock_rate(1000);
  make_engine(measured());
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
}

TEST_P(RelayTest, KeepsItsShareIfTheReceiversLinkIsAsSlow) {
  expect_keeps_its_share_if_all_are_slow(kRelayChunk);
}

TEST_P(RelayTest, PushesThatDoNotCrossTheHostAreNotSlowWithIt) {
  for (const auto& member : faulty_) {
    member->claim_memory_of_its_own();
    member->set_clock_rate(1000);
  }
  make_engine(measured());
  const auto gives_way = [](const auto& carried) { return carried[1] <= kProbes && carried[2] <= kProbes; };
  EXPECT_TRUE(soon(gives_way)) << "all seem slow, also the receiver's link";
}

// Their latency, and the gaps between copies, would show in the rates of the following two. So they are not
// judged, even if they take long.

TEST_P(RelayTest, SmallChunksAreNotJudged) {
  DeviceTuning tuning = plain_[0].info().tuning;
  tuning.first_staged_chunk = 4096;
  faulty_[0]->tune(tuning);
  make_engine();
  const GroupPiece small{locked_->data(), 0, kRelayChunk / 2};
  const auto others_carry = [&] {
    std::size_t bytes = 0;
    for (int i = 0; i < 10; ++i) {
      const std::vector<std::size_t> carried = carried_of({&small, 1});
      bytes += carried[1] + carried[2];
    }
    return bytes > 10 * small.bytes / 2;
  };
  bool carried = false;
  for (int i = 0; i < 5 && !carried; ++i) {
    EXPECT_TRUE(soon_carries_its_share(1));
    EXPECT_TRUE(soon_carries_its_share(2));
    faulty_[0]->delay(Entry::copy, std::chrono::milliseconds(20));  // so that the others carry
    set_clock_rates(1000);
    carried = others_carry();
    set_clock_rates(1);
    faulty_[0]->delay(Entry::copy, std::chrono::milliseconds(0));
  }
  EXPECT_TRUE(carried);
}

TEST_P(RelayTest, ManyCopiesAreNotJudged) {
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
  faulty_[0]->delay(Entry::copy, std::chrono::milliseconds(1));
  set_clock_rates(1000);
  std::vector<GroupPiece> apart;
  for (std::size_t at = 0; at < data_.size(); at += 8192) apart.push_back({locked_->data() + at, at, 4096});
  const auto others_carry = [&] {
    const std::vector<std::size_t> carried = carried_of(apart);
    return carried[1] + carried[2] > data_.size() / 4;
  };
  bool carried = false;
  for (int i = 0; i < 10 && !carried; ++i) carried = others_carry();
  EXPECT_TRUE(carried);
  EXPECT_TRUE(others_carry()) << "what it saw first was not slow";
}

TEST_P(RelayTest, GivesWayToNobodyIfTheReceiverCannotCarry) {
  EXPECT_TRUE(soon_carries_its_share(1));
  EXPECT_TRUE(soon_carries_its_share(2));
  set_clock_rates(1000);
  carried_once();
  // Its slots are refused when the others wait for it to carry.
  const auto exhaust = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw OutOfMemory("a test's memory", 1, 1, 0);
  };
  faulty_[0]->fail(Entry::host_register, 1, FaultyBackend::kForever, exhaust);
  faulty_[0]->fail(Entry::host_allocate, 1, FaultyBackend::kForever, exhaust);
  poison(0, *received_);
  const Transfer transfer = engine_->relay(0, received_->data(), data_.data(), data_.size());
  ASSERT_TRUE(comes_true([&] { return transfer.query(); }));
  EXPECT_EQ(first_difference(read(0, *received_, data_.size()), data_), -1);
}

}  // namespace
}  // namespace penstock::testing
