#include "support/gate.hpp"
#include "transfer/engine_fixture.hpp"
#include "transfer/shared/event_pool.hpp"

#include <penstock/transfer/account.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <vector>

/// The account by itself, with the calls that loaders and feeds make.
namespace penstock::testing {
namespace {

class TransferAccount : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace(device_->create_stream());
  }

  void make_account(const AccountOptions& options = {.timeline_batches = 8}) {
    account_.emplace(*faulty_device_, options);
    ends_ = std::make_shared<EventPool>(*faulty_device_, EventTiming::on);
  }

  void answer_with_batch(Account::Request& request, std::size_t link_bytes = 0, std::uint64_t epoch = 0) {
    TimedBatch* const timed = account_->open();
    timed->begin.record(*stream_);
    std::shared_ptr<Event> end = ends_->take();
    end->record(*stream_);
    timed->end = std::move(end);
    request.answer({.timed = timed,
                    .times = {.epoch = epoch, .samples = 3, .link_bytes = link_bytes},
                    .delivered_bytes = 1});
    stream_->synchronize();
  }

  /// Records that nobody has.
  std::size_t records() {
    std::vector<TimedBatch*> taken;
    while (TimedBatch* const timed = account_->open()) taken.push_back(timed);
    for (TimedBatch* const timed : taken) account_->discard(timed);
    return taken.size();
  }

  std::optional<Stream> stream_;
  std::optional<Account> account_;
  std::shared_ptr<EventPool> ends_;
};
PENSTOCK_DEVICE_SUITE(TransferAccount);

TEST_P(TransferAccount, ManyMayAskAtOnceOfWhomSomeGoUntimed) {
  make_account();
  std::list<Account::Request> requests;
  for (int i = 0; i < 20; ++i) requests.emplace_back(*account_, &*stream_);
  for (Account::Request& request : requests) answer_with_batch(request);
  EXPECT_EQ(account_->total().batches, 20U);
  EXPECT_EQ(account_->total().timed_batches, 16U);
}

TEST_P(TransferAccount, RequestsWithoutAnAnswerCostNothing) {
  make_account();
  for (int i = 0; i < 20; ++i) const Account::Request forgotten(*account_, &*stream_);
  Account::Request request(*account_, &*stream_);
  answer_with_batch(request);
  EXPECT_EQ(account_->total().timed_batches, 1U);
}

TEST_P(TransferAccount, ABatchWhoseArrivalCannotBeMarkedGoesUntimed) {
  make_account({.wraps_loader = true});
  const std::size_t before = records();
  for (int i = 0; i < 20; ++i) {
    Account::Request request(*account_, &*stream_);
    faulty_->fail(Entry::event_record, 3);
    EXPECT_NO_THROW(answer_with_batch(request));
  }
  EXPECT_EQ(account_->total().batches, 20U);
  EXPECT_EQ(account_->total().timed_batches, 0U);
  EXPECT_EQ(records(), before);
  Account::Request request(*account_, &*stream_);
  answer_with_batch(request);
  EXPECT_EQ(account_->total().timed_batches, 1U) << "no event was lost";
}

TEST_P(TransferAccount, TimesThatCannotBeReadCostNoRecord) {
  make_account();
  const std::size_t before = records();
  Account::Request request(*account_, &*stream_);
  answer_with_batch(request);
  faulty_->fail(Entry::event_elapsed);
  EXPECT_THROW(static_cast<void>(account_->total()), DeviceError);
  EXPECT_EQ(records(), before);
}

TEST_P(TransferAccount, TheLatestEpochsAreKept) {
  make_account();
  for (std::uint64_t epoch = 0; epoch < 65; ++epoch) {
    Account::Request request(*account_, &*stream_);
    request.end(epoch);
    stream_->synchronize();
  }
  EXPECT_FALSE(account_->epoch(0).has_value());
  EXPECT_TRUE(account_->epoch(1).has_value());
  EXPECT_EQ(account_->total().epochs, 65U);
}

TEST_P(TransferAccount, NoBatchCrossesFasterThanTheLinkAlsoInTheTimeline) {
  make_account({.timeline_batches = 8, .link_ceiling = 1e3});
  for (int i = 0; i < 3; ++i) {
    Account::Request request(*account_, &*stream_);
    answer_with_batch(request, 2000);
  }
  const FeedStatistics s = account_->total();
  ASSERT_EQ(s.timed_batches, 3U);
  EXPECT_NEAR(s.transfer_seconds, 6, 0.5);
  EXPECT_EQ(s.link_ceiling, 1e3);
  ASSERT_EQ(account_->timeline().size(), 3U);
  for (const BatchTimes& times : account_->timeline()) {
    EXPECT_GE(times.transfer_end - times.transfer_begin, 2 - 1e-9);
  }
}

TEST_P(TransferAccount, TheTimeBetweenTwoEpochsBelongsToNone) {
  make_account({.timeline_batches = 8});
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 2; ++i) {
      Account::Request request(*account_, &*stream_);
      answer_with_batch(request, 0, epoch);
    }
    Account::Request request(*account_, &*stream_);
    request.end(epoch);
    stream_->synchronize();
    stream_->occupy(0.02);
    stream_->synchronize();
  }
  const FeedStatistics s = account_->total();
  double seconds = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) seconds += account_->epoch(epoch)->seconds;
  EXPECT_NEAR(s.seconds, seconds, 1e-9);
  EXPECT_LE(s.stall_seconds + s.compute_seconds, s.seconds * 1.01 + 1e-3);
  const std::vector<BatchTimes> timeline = account_->timeline();
  ASSERT_EQ(timeline.size(), 6U);
  const auto stall = [&](std::size_t batch) {
    return std::max(0.0, timeline[batch].arrived - timeline[batch].asked);
  };
  EXPECT_GT(s.first_stall_seconds, 0);
  EXPECT_NEAR(s.first_stall_seconds, stall(0) + stall(2) + stall(4), 1e-9);
  EXPECT_NEAR(account_->epoch(2)->first_stall_seconds, stall(4), 1e-9);
}

/// The consumer's stream works for `step` after each of two batches; the second is the first of an iteration.
TEST_P(TransferAccount, WorkBeforeTheFirstRequestOfAnIterationIsNoStep) {
  constexpr double kStep = 0.02;
  for (const bool is_first : {false, true}) {
    make_account();
    {
      Account::Request request(*account_, &*stream_);
      answer_with_batch(request);
    }
    stream_->occupy(kStep);
    Account::Request request(*account_, &*stream_, is_first);
    answer_with_batch(request);
    EXPECT_EQ(account_->total().timed_batches, 2U);
    EXPECT_EQ(account_->total().compute_seconds >= kStep / 2, !is_first);
  }
}

/// The consumer's stream works after each of three batches. The second is not timed, and has most of the
/// work.
TEST_P(TransferAccount, WorkOnABatchThatIsNotTimedIsNoStepOfAnother) {
  const auto holds = [&](double step, bool is_refused) {
    make_account();
    for (int i = 0; i < 3; ++i) {
      Account::Request request(*account_, &*stream_);
      if (i == 1 && is_refused) {
        request.answer({.times = {.samples = 3}, .delivered_bytes = 1});
      } else {
        answer_with_batch(request);
      }
      stream_->occupy(i == 1 ? 10 * step : step);
      stream_->synchronize();
      if (i == 1 && !is_refused) {
        faulty_->fail(Entry::event_elapsed);
        EXPECT_THROW(static_cast<void>(account_->total()), DeviceError);
        faulty_->heal();
      }
    }
    EXPECT_EQ(account_->total().timed_batches, 2U);
    return account_->total().compute_seconds < 8 * step;
  };
  for (const bool is_refused : {false, true}) {  // or its times cannot be read
    // A busy machine is late to end what is short.
    EXPECT_TRUE(holds(0.01, is_refused) || holds(0.1, is_refused));
  }
}

TEST_P(TransferAccount, AHostThatIsLateToSeeItsDeviceTakesNothingFromTheStep) {
  constexpr double kStep = 0.02;
  faulty_->delay(Entry::event_synchronize, std::chrono::milliseconds(20));
  make_account();
  faulty_->delay(Entry::event_synchronize, {});
  {
    Account::Request request(*account_, &*stream_);
    answer_with_batch(request);
  }
  stream_->occupy(kStep);
  stream_->synchronize();
  ASSERT_EQ(account_->total().timed_batches, 1U);
  Account::Request request(*account_, &*stream_);
  answer_with_batch(request);
  EXPECT_GE(account_->total().compute_seconds, 0.9 * kStep);
}

/// A device that counts a wait as longer than the host saw it cannot be held at both of its ends: the host
/// has seen the batch arrive, so the wait may seem to begin early, but by no more than its own length.
TEST_P(TransferAccount, ADeviceWhoseClockGoesWrongIsHeldToTheHosts) {
  for (const double rate : {0.5, 2.0}) {
    faulty_->set_clock_rate(rate);
    make_account();
    std::vector<double> before;
    std::vector<double> after;
    for (int i = 0; i < 4; ++i) {
      stream_->occupy(0.005);
      stream_->synchronize();
      before.push_back(account_->now());
      Account::Request request(*account_, &*stream_);
      answer_with_batch(request);
      ASSERT_EQ(account_->total().timed_batches, i + 1U);
      after.push_back(account_->now());
    }
    const std::vector<BatchTimes> timeline = account_->timeline();
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      const double waited = timeline[i].arrived - timeline[i].asked;
      EXPECT_GE(timeline[i].asked, before[i] - waited - 1e-5) << "batch " << i << " at rate " << rate;
      EXPECT_LE(timeline[i].arrived, after[i] + 1e-5) << "batch " << i << " at rate " << rate;
    }
  }
}

TEST_P(TransferAccount, ABatchOfAWrappedLoaderIsTimedByItsTransfers) {
  TransferEngine engine(*faulty_device_, many_chunks());
  make_account({.timeline_batches = 8, .wraps_loader = true});
  const auto source = random_bytes(300 << 10, 1);
  const Buffer memory = memory_->allocate(2 * source.size());
  for (int i = 0; i < 5; ++i) {
    Account::Request request(*account_, &*stream_);
    TimedBatch* const timed = account_->open();
    timed->transfers = {engine.copy(memory.data(), source.data(), source.size(), {.timed = true}),
                        engine.copy(memory.data() + source.size(), source.data(), source.size(),
                                    {.path = TransferPath::packed, .timed = true})};
    for (const Transfer& transfer : timed->transfers) stream_->wait(transfer);
    request.answer({.timed = timed, .times = {.link_bytes = 2 * source.size()}});
  }
  stream_->synchronize();
  const FeedStatistics s = account_->total();
  EXPECT_TRUE(s.wraps_loader);
  EXPECT_EQ(s.timed_batches, 5U);
  EXPECT_GT(s.transfer_seconds, 0);
  EXPECT_LE(s.exposed_transfer_seconds, s.stall_seconds + 1e-9);
  const TimedBatch* const next = account_->open();
  EXPECT_TRUE(next->transfers.empty()) << "they are let go once they are read";
  for (const BatchTimes& times : account_->timeline()) {
    EXPECT_LT(times.transfer_begin, times.transfer_end);
    EXPECT_LE(times.transfer_end, times.arrived + 1e-4) << "it arrived after its transfers";
  }
}

TEST_P(TransferAccount, AHostThatWaitsForItsBatchesNeedsNoStream) {
  TransferEngine engine(*faulty_device_, many_chunks());
  for (const Entry entry : {Entry::event_record, Entry::event_synchronize}) {
    faulty_->delay(entry, std::chrono::milliseconds(20));  // so that it is not known when the device began
  }
  make_account({.timeline_batches = 8, .wraps_loader = true});
  for (const Entry entry : {Entry::event_record, Entry::event_synchronize}) faulty_->delay(entry, {});
  const auto source = random_bytes(300 << 10, 1);
  const Buffer memory = memory_->allocate(source.size());
  for (int i = 0; i < 5; ++i) {
    Account::Request request(*account_, nullptr);
    TimedBatch* const timed = account_->open();
    timed->transfers = {engine.copy(memory.data(), source.data(), source.size(), {.timed = true})};
    timed->transfers.front().synchronize();
    request.answer({.timed = timed, .times = {.link_bytes = source.size()}});
  }
  Account::Request request(*account_, nullptr);
  request.end(0);
  const FeedStatistics s = account_->total();
  EXPECT_EQ(s.timed_batches, 5U);
  EXPECT_GT(s.transfer_seconds, 0);
  EXPECT_GT(s.stall_seconds, 0);
  EXPECT_GT(s.compute_seconds, 0);
  EXPECT_LE(s.stall_seconds + s.compute_seconds, s.seconds * 1.01 + 1e-3);
  for (const BatchTimes& times : account_->timeline()) {
    EXPECT_LT(times.asked, times.arrived);
    EXPECT_LE(times.asked, times.transfer_begin + 1e-4) << "it was asked for before";
    EXPECT_LT(times.transfer_begin, times.transfer_end);
    EXPECT_LE(times.transfer_end, times.arrived) << "the host has seen its end";
  }
}

TEST_P(TransferAccount, AWrappedLoadersRecordsAreMadeAsTheyAreNeeded) {
  const auto events = [&] { return faulty_->live().events; };
  make_account({.wraps_loader = true});
  EXPECT_LT(events(), 8U);
  for (int i = 0; i < 20; ++i) {
    Account::Request request(*account_, &*stream_);
    request.answer({.timed = account_->open()});
    stream_->synchronize();
  }
  EXPECT_EQ(account_->total().timed_batches, 20U);
  const std::size_t then = events();
  EXPECT_LT(then, 24U) << "of the batch before, and this one";
  faulty_->fail(Entry::event_create, 1, FaultyBackend::kForever);
  std::vector<TimedBatch*> taken;
  while (TimedBatch* const timed = account_->open()) taken.push_back(timed);
  EXPECT_EQ(events(), then) << "what cannot be made is done without";
  for (TimedBatch* const timed : taken) account_->discard(timed);
  faulty_->heal();
  EXPECT_EQ(records(), 127U) << "all but that of the batch before";
}

TEST_P(TransferAccount, ABatchGoesUntimedIfTheBeginningOfItsTransferCannotBeMarked) {
  TransferEngine engine(*faulty_device_, many_chunks());
  const auto source = random_bytes(300 << 10, 1);
  const Buffer memory = memory_->allocate(source.size());
  Event origin = faulty_device_->create_event(EventTiming::on);
  origin.record(*stream_);
  origin.synchronize();
  const Buffer pinned = pinned_->allocate(source.size());
  std::memcpy(pinned.data(), source.data(), source.size());
  const auto expect_timed = [&](TransferPath path, const std::byte* from) {
    const auto copy = [&](bool timed) {
      const Transfer transfer =
          engine.copy(memory.data(), from, source.size(), {.path = path, .timed = timed});
      transfer.synchronize();
      return transfer;
    };
    const auto span = copy(true).span_since(origin);
    ASSERT_TRUE(span.has_value()) << transfer_path_name(path);
    EXPECT_LT(0, span->begin);
    EXPECT_LT(span->begin, span->end);
    EXPECT_FALSE(copy(false).span_since(origin).has_value());
    faulty_->fail(Entry::event_record);
    const Transfer unmarked = copy(true);
    EXPECT_FALSE(unmarked.span_since(origin).has_value()) << transfer_path_name(path);
    EXPECT_EQ(first_difference(read(memory), source), -1);
  };
  for (const TransferPath path : kPaths) expect_timed(path, source.data());
  expect_timed(TransferPath::direct, pinned.data());
  EXPECT_FALSE(Transfer().span_since(origin).has_value());
}

TEST_P(TransferAccount, TransfersToTheHostAndOnTheDeviceAreTimedToo) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(300 << 10, 1);
  const Buffer from = on_device(source);
  const Buffer to = memory_->allocate(source.size());
  Event origin = device_->create_event(EventTiming::on);
  origin.record(*stream_);
  origin.synchronize();
  std::vector<std::byte> back(source.size());
  for (const TransferPath path : kPaths) {
    for (std::byte* const destination : {back.data(), to.data()}) {
      if (destination == to.data() && path == TransferPath::staged) continue;
      const Transfer transfer =
          engine.copy(destination, from.data(), source.size(), {.path = path, .timed = true});
      transfer.synchronize();
      stream_->wait(transfer);
      stream_->synchronize();
      const auto span = transfer.span_since(origin);
      ASSERT_TRUE(span.has_value()) << transfer_path_name(path);
      EXPECT_LT(span->begin, span->end);
    }
  }
}

/// Over links whose speed is known.
TEST(TransferSpans, ASpanCoversAllCopiesOfItsTransfer) {
  const Device device = Device::open("host:link=0.05");
  TransferEngine engine(device, many_chunks());
  const Stream stream = device.create_stream();
  Event origin = device.create_event(EventTiming::on);
  origin.record(stream);
  origin.synchronize();
  const auto source = random_bytes(1 << 20, 1);
  Pool pool = make_device_pool(device);
  const Buffer memory = pool.allocate(source.size());
  for (const TransferPath path : kPaths) {
    const Transfer transfer =
        engine.copy(memory.data(), source.data(), source.size(), {.path = path, .timed = true});
    transfer.synchronize();
    const auto span = transfer.span_since(origin);
    ASSERT_TRUE(span.has_value());
    EXPECT_GE(span->end - span->begin, 0.7 * static_cast<double>(source.size()) / 5e7)
        << transfer_path_name(path);
  }
}

TEST_P(TransferAccount, TheTimeThatATransferWaitsForAStreamIsNotItsOwn) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes(300 << 10, 1);
  const Buffer memory = memory_->allocate(source.size());
  Event origin = device_->create_event(EventTiming::on);
  origin.record(*stream_);
  origin.synchronize();
  Event worked = device_->create_event(EventTiming::on);
  for (const TransferPath path : kPaths) {
    stream_->occupy(0.02);
    worked.record(*stream_);
    const Transfer transfer = engine.copy(memory.data(), source.data(), source.size(),
                                          {.path = path, .after = &*stream_, .timed = true});
    transfer.synchronize();
    const auto span = transfer.span_since(origin);
    ASSERT_TRUE(span.has_value());
    EXPECT_GE(span->begin, worked.seconds_since(origin) - 1e-5) << transfer_path_name(path);
  }
}

}  // namespace
}  // namespace penstock::testing
