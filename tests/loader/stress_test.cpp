#include "loader/faulty_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

/// Random feeds with random faults. Every byte of each batch is checked.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto kTime = 1000ms;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr auto kTime = 1000ms;
#else
constexpr auto kTime = 2000ms;
#endif
#else
constexpr auto kTime = 2000ms;
#endif

using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }
bool one_in(Random& random, std::uint64_t odds) { return below(random, odds) == 0; }

class LoaderStress : public FaultyLoaderTest {
 protected:
  static constexpr std::uint64_t kSamples = 97;

  /// The fields as they are, or read by functions that are slow and sometimes fail.
  Dataset disguised(Random& random) {
    std::vector<FieldReaderPtr> readers;
    for (std::size_t f = 0; f < plain_.field_count(); ++f) {
      const auto reader = plain_.reader(f);
      if (!one_in(random, 3)) {
        readers.push_back(reader);
        continue;
      }
      const std::uint64_t bad = one_in(random, 2) ? below(random, kSamples) : kSamples;
      const bool slow = one_in(random, 3);
      readers.push_back(
          read_callback(reader->field(), kSamples,
                        [this, reader, bad, slow](std::uint64_t index, std::span<std::byte> out) {
                          if (slow && index % 16 == 0) std::this_thread::sleep_for(100us);
                          if (index == bad && bad_samples_) throw std::runtime_error("a bad sample");
                          reader->gather(std::span(&index, 1), out, StoreKind::cached);
                          return out.size();
                        }));
    }
    return Dataset(std::move(readers));
  }

  LoaderOptions any_options(Random& random, bool in_memory) {
    const std::size_t batch = 1 + below(random, 40);
    LoaderOptions options{
        .batch_size = batch,
        .shuffle = !one_in(random, 3),
        .seed = below(random, 5),
        .drop_last = one_in(random, 4),
        .prefetch_depth = 1 + below(random, 5),
        .residency = Residency::parse(std::array{"none", "none", "0.3", "all", "auto"}[below(random, 5)]),
        .gather = std::array{GatherPath::host, GatherPath::automatic,
                             GatherPath::copy_engine}[below(random, in_memory ? 3 : 2)],
        .narrow = one_in(random, 2),
        .when_full = one_in(random, 2) ? WhenFull::fail : WhenFull::wait,
        .full_patience = std::chrono::milliseconds(below(random, 5)),
        .copy_limit_bytes = one_in(random, 2) ? std::size_t{0} : std::size_t{1} << 20,
        .threads = static_cast<unsigned>(1 + below(random, 3)),
        .timeline_batches = below(random, 20)};
    if (one_in(random, 2)) {
      const std::size_t slot = batch * plain_.sample_bytes() + 4 * 256 + batch * 8;
      options.device_budget_bytes = (1 + below(random, 8)) * slot + kSamples * plain_.sample_bytes() + 1024;
    }
    return options;
  }

  void disturb(Random& random) {
    constexpr Entry kSlow[] = {Entry::copy,         Entry::copy_each,         Entry::gather,
                               Entry::event_record, Entry::stream_wait_event, Entry::event_query};
    for (const Entry entry : kSlow) {
      faulty_->delay(entry, std::chrono::microseconds(one_in(random, 5) ? below(random, 150) : 0));
    }
    if (one_in(random, 2)) {
      const auto entry = static_cast<Entry>(below(random, static_cast<std::uint64_t>(Entry::last_) + 1));
      const bool memory = entry == Entry::device_allocate;
      faulty_->fail(entry, 1 + below(random, 150), memory ? 3 : 1,
                    memory ? [] { throw OutOfMemory("a device", 1, 1, 0); } : std::function<void()>());
    }
  }

  void check(const DeviceBatch& batch, const Stream& stream) {
    const HostBatch host = read(batch, stream);
    expect_stored(plain_, host);
    const std::lock_guard lock(mutex_);
    doubled_ |= !seen_.emplace(host.epoch, host.index).second;
  }

  /// Takes batches and keeps some of them, until the loader is closed.
  void consume(Loader& loader, std::uint64_t seed, const Stream& stream, const Stream& second) {
    Random random(seed);
    std::deque<DeviceBatch> kept;
    const auto drop = [&] {
      for (const DeviceBatch& batch : kept) check(batch, stream);
      kept.clear();
    };
    const std::size_t most = below(random, 5);
    for (bool open = true; open;) {
      try {
        auto batch = loader.next(stream);
        if (!batch) continue;
        if (one_in(random, 4)) batch->use_on(second);
        if (one_in(random, 8)) {
          const std::lock_guard lock(mutex_);
          passed_on_.push_back(std::move(*batch));
          continue;
        }
        kept.push_back(std::move(*batch));
        if (one_in(random, 16)) static_cast<void>(loader.stats());
        if (one_in(random, 64)) {
          restarted_ = true;
          loader.start_epoch(below(random, 4));
        }
      } catch (const OutOfMemory&) {
        drop();
      } catch (const Closed&) {
        open = false;
      } catch (const Error&) {
        restarted_ = true;
        bad_samples_ = false;
        faulty_->heal();
        try {
          loader.restore(loader.state());
        } catch (const Closed&) {
          open = false;
        }
      }
      while (kept.size() > most) {
        const std::size_t which = below(random, kept.size());
        check(kept[which], stream);
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    if (one_in(random, 2)) drop();
    second.synchronize();
    stream.synchronize();
  }

  void run_once(Random& random) {
    bad_samples_ = true;
    restarted_ = false;
    doubled_ = false;
    seen_.clear();
    disturb(random);
    try {
      const Dataset dataset = one_in(random, 3) ? plain_ : disguised(random);
      const bool in_memory = !dataset.memory(0).empty() && !dataset.memory(1).empty();
      auto loader = std::make_unique<Loader>(dataset, *faulty_device_, any_options(random, in_memory));
      std::vector<std::thread> consumers;
      for (std::size_t i = 0, count = 1 + below(random, 3); i < count; ++i) {
        consumers.emplace_back([this, &loader = *loader, seed = random(), i] {
          consume(loader, seed, streams_[2 * i], streams_[2 * i + 1]);
        });
      }
      const auto take_over = [&] {
        std::vector<DeviceBatch> batches;
        {
          const std::lock_guard lock(mutex_);
          batches.swap(passed_on_);
        }
        for (DeviceBatch& batch : batches) {
          batch.use_on(streams_.back());
          check(batch, streams_.back());
        }
      };
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(below(random, 40000));
      while (std::chrono::steady_clock::now() < until) {
        take_over();
        std::this_thread::sleep_for(200us);
      }
      faulty_->heal();
      loader->close();
      for (std::thread& consumer : consumers) consumer.join();
      if (one_in(random, 2)) loader.reset();
      take_over();
    } catch (const Error&) {  // it could not be made
    }
    faulty_->heal();
    EXPECT_EQ(faulty_->live(), LiveHandles{});
    if (!restarted_) {
      EXPECT_FALSE(doubled_) << "a batch came twice";
    }
  }

  void SetUp() override {
    FaultyLoaderTest::SetUp();
    if (IsSkipped()) return;
    for (int i = 0; i < 7; ++i) streams_.push_back(device_->create_stream());
  }

  const Dataset plain_{{random_field("x", DType::uint8, {3, 50}, kSamples, 1),
                        random_field("y", DType::int32, {}, kSamples, 2),
                        random_field("z", DType::float32, {7}, kSamples, 3)}};
  std::atomic<bool> bad_samples_{true};
  std::atomic<bool> restarted_{false};
  std::mutex mutex_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;
  bool doubled_ = false;
  std::vector<Stream> streams_;  ///< two for each consumer, and one for who is handed batches
  std::vector<DeviceBatch> passed_on_;
};
PENSTOCK_DEVICE_SUITE(LoaderStress);

TEST_P(LoaderStress, EveryByteOfEveryBatchIsRight) {
  const auto until = std::chrono::steady_clock::now() + kTime;
  for (std::uint64_t round = 0; std::chrono::steady_clock::now() < until; ++round) {
    // Another --gtest_random_seed gives other rounds.
    const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
    SCOPED_TRACE("round " + std::to_string(round) + " of seed " + std::to_string(seed));
    Random random(seed << 32 | round);
    run_once(random);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace penstock::testing
