#include "fake_driver/fake_cuda_controls.hpp"
#include "loader/ranks.hpp"
#include "support/bytes.hpp"
#include "support/device_cases.hpp"
#include "support/other_process.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/loader/fill_ranks.hpp>
#include <penstock/memory/pool.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

/// Blocks that several processes fill together. Each rank is a process of this program, which checks its
/// bytes by itself.
namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kNever = ~std::uint64_t{0};

struct FillSetup {
  std::array<char, 64> device{};
  std::array<char, 128> key{};
  std::array<char, 64> facts{"bytes"};
  std::uint64_t rank = 0;
  std::uint64_t ranks = 2;
  std::array<std::uint64_t, 5> sizes{};
  int calls = 1;
  bool peer_access = true;
  std::uint64_t free_bytes = 0;       ///< of the fake driver's device, beside the blocks; 0: as it is
  std::uint64_t throws_at = kNever;   ///< the byte of the first block whose filling throws
  std::uint64_t dies_after = kNever;  ///< bytes that it has written
  bool dies_as_they_meet = false;     ///< once it has told of its memory, for `all` bytes
  std::uint64_t all = 0;
  int slow_us = 0;              ///< for each part
  bool is_interrupted = false;  ///< once it has filled something
  double busy_seconds = 0;      ///< the stream that comes before
  double link_rate = 0;         ///< of its profile, bytes per second; 0: it has none
};

struct FillAnswer {
  std::uint64_t filled = 0;  ///< calls of fill_ranks that returned true
  std::uint64_t wrong = 0;   ///< blocks that hold other bytes
  std::uint64_t bytes = 0;   ///< that this process's functions wrote
  bool is_busy = false;      ///< afterwards the stream that comes before had work left
  int warnings = 0;
  std::uint64_t taken = 0;  ///< the most device memory, of what was free before
  long met = 0;             ///< how often memory of the fake driver's device was to be read by others
  std::array<char, 600> text{};

  [[nodiscard]] std::string error() const { return text.data(); }
};

/// Writes the bytes of a block from `offset` on. They come again after a prime number of them: no part of a
/// block is like another.
void write_values(std::size_t block, std::size_t offset, std::span<std::byte> bytes) {
  static const std::vector<std::byte> values = random_bytes(65'537, 1);
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t at = (block * 131 + offset + done) % values.size();
    const std::size_t now = std::min(bytes.size() - done, values.size() - at);
    std::memcpy(bytes.data() + done, values.data() + at, now);
    done += now;
  }
}

class Filler {
 public:
  explicit Filler(const FillSetup& setup)
      : setup_(setup),
        device_(open_for_tests(setup.device.data())),
        stream_(device_.create_stream()),
        memory_(make_device_pool(device_)),
        pinned_(make_pinned_pool(device_)) {
    for (const std::uint64_t size : setup.sizes) {
      buffers_.push_back(memory_.allocate(static_cast<std::size_t>(std::max<std::uint64_t>(size, 1))));
    }
  }

  [[nodiscard]] std::size_t used_memory() const {
    const DeviceMemory memory = device_.memory();
    return memory.total - memory.free;
  }

  void run(FillAnswer& answer) {
    board_ = std::make_unique<ProcessBoard>(board());
    if (setup_.dies_as_they_meet) {
      board_->agree(setup_.facts.data() + std::string("; ") + std::to_string(setup_.all) + " bytes");
      static_cast<void>(board_->exchange(std::to_string(device_.memory().free)));
      static_cast<void>(board_->exchange("0"));  // the rate of its link
      std::raise(SIGKILL);
    }
    const std::size_t free = device_.memory().free;
    least_free_ = free;
    for (int call = 0; call < setup_.calls; ++call) {
      for (const Buffer& buffer : buffers_) stream_.fill(buffer.data(), 0xEE, buffer.size());
      stream_.synchronize();
      if (setup_.busy_seconds > 0) {
        stream_.occupy(setup_.busy_seconds);
        for (const Buffer& buffer : buffers_) stream_.fill(buffer.data(), 0x55, buffer.size());
      }
      try {
        const bool filled = fill_ranks(device_, *board_, setup_.facts.data(), blocks(),
                                       {.after = &stream_, .profile = profile_of(device_, setup_.link_rate)});
        answer.filled += filled ? 1 : 0;
        answer.wrong += wrong_blocks(filled);
      } catch (const Error& error) {
        put(answer.text, error.what());
      }
    }
    answer.is_busy = !stream_.query();
    answer.bytes = written_;
    answer.taken = free - least_free_;
  }

 private:
  [[nodiscard]] ProcessBoardOptions board() {
    ProcessBoardOptions board{
        .meeting = {.key = setup_.key.data(), .processes = static_cast<std::size_t>(setup_.ranks)},
        .rank = static_cast<std::size_t>(setup_.rank),
        .timeout = std::chrono::seconds(60)};
    if (setup_.is_interrupted) {
      board.meeting.while_waiting = [this] {
        if (written_ > 0) throw Closed("enough of it");
      };
    }
    return board;
  }

  [[nodiscard]] std::vector<FilledBlock> blocks() {
    std::vector<FilledBlock> blocks;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      blocks.push_back(
          {buffers_[i].data(), static_cast<std::size_t>(setup_.sizes[i]),
           [this, i](std::size_t offset, std::span<std::byte> bytes) { fill(i, offset, bytes); }});
    }
    return blocks;
  }

  void fill(std::size_t block, std::size_t offset, std::span<std::byte> bytes) {
    const bool throws = block == 0 && setup_.throws_at - offset < bytes.size();
    if (throws) throw InvalidArgument("this byte is broken");
    if (written_ >= setup_.dies_after) std::raise(SIGKILL);
    if (setup_.slow_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(setup_.slow_us));
    write_values(block, offset, bytes);
    written_ += bytes.size();
    const std::lock_guard guard(mutex_);
    least_free_ = std::min(least_free_, device_.memory().free);
  }

  [[nodiscard]] std::uint64_t wrong_blocks(bool filled) {
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const Buffer there = pinned_.allocate(buffers_[i].size());
      const Stream reading = device_.create_stream();
      reading.copy(there.data(), buffers_[i].data(), there.size(), CopyDirection::d2h);
      reading.synchronize();
      std::vector<std::byte> expected(static_cast<std::size_t>(setup_.sizes[i]), std::byte{0xEE});
      if (filled) write_values(i, 0, expected);
      wrong += first_difference(there.bytes().first(expected.size()), expected) == -1 ? 0 : 1;
    }
    return wrong;
  }

  const FillSetup setup_;
  std::unique_ptr<ProcessBoard> board_;
  const Device device_;
  const Stream stream_;
  Pool memory_;
  Pool pinned_;
  std::vector<Buffer> buffers_;
  std::atomic<std::uint64_t> written_{0};
  std::mutex mutex_;            ///< guards it
  std::size_t least_free_ = 0;  ///< memory of the device, while its blocks were filled
};

TEST(OtherFiller, DISABLED_Fills) {
  const Talk starter = OtherProcess::starter();
  const auto setup = starter.receive<FillSetup>();
  std::optional<FakeCuda> fake;
  if (std::string_view(setup.device.data()).starts_with("cuda")) {
    fake.emplace(PENSTOCK_FAKE_DRIVER);
    fake->set_devices(3);
    fake->set_peer_access(setup.peer_access ? 1 : 0);
  }
  Filler filler(setup);
  if (setup.free_bytes > 0) fake->set_memory(filler.used_memory() + setup.free_bytes);
  FillAnswer answer;
  set_log_sink([&](std::string_view) { ++answer.warnings; });
  filler.run(answer);
  set_log_sink({});
  if (fake) answer.met = fake->calls("cuIpcGetMemHandle");
  starter.send(answer);
}

class FillRanksTest : public ::testing::TestWithParam<Devices> {
 protected:
  void SetUp() override {
    if (GetParam().name == "Cuda" && !missing_gpus().empty()) GTEST_SKIP() << missing_gpus();
  }
  /// What the ranks say, except `killed`.
  std::vector<FillAnswer> run(const std::function<void(FillSetup&)>& change, std::size_t killed = ~0ULL) {
    static int group = 0;
    const std::string key = "fills of " + std::to_string(getpid()) + " " + std::to_string(++group);
    std::vector<std::unique_ptr<OtherProcess>> ranks;
    for (std::size_t rank = 0; rank < GetParam().specs.size(); ++rank) {
      FillSetup setup{
          .rank = rank, .ranks = GetParam().specs.size(), .sizes = {kLarge, 0, 1, 12'345'678, 77}};
      put(setup.device, GetParam().specs[rank]);
      put(setup.key, key);
      change(setup);
      ranks.push_back(std::make_unique<OtherProcess>("OtherFiller.DISABLED_Fills"));
      ranks.back()->send(setup);
      pids_.push_back(ranks.back()->pid());
    }
    std::vector<FillAnswer> answers;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank != killed) answers.push_back(ranks[rank]->receive<FillAnswer>());
      EXPECT_EQ(ranks[rank]->wait(), rank != killed);
    }
    return answers;
  }

  static constexpr std::uint64_t kLarge = (std::uint64_t{19} << 20) + 123;
  static constexpr std::uint64_t kAll = kLarge + 1 + 12'345'678 + 77;
  std::vector<pid_t> pids_;
};

TEST_P(FillRanksTest, AllGetAllBytesAndEachIsFilledOnce) {
  std::uint64_t bytes = 0;
  for (const FillAnswer& answer : run([](FillSetup& setup) { setup.calls = 3; })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 3u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_NEAR(static_cast<double>(answer.bytes), 3.0 * kAll / static_cast<double>(pids_.size()),
                kAll / 20.0);
    bytes += answer.bytes;
  }
  EXPECT_EQ(bytes, 3 * kAll);
}

TEST_P(FillRanksTest, FasterLinksBringMore) {
  std::uint64_t bytes = 0;
  for (const FillAnswer& answer :
       run([](FillSetup& setup) { setup.link_rate = setup.rank == 0 ? 30e9 : 10e9; })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 1u);
    EXPECT_EQ(answer.wrong, 0u);
    const double share = (bytes == 0 ? 3.0 : 1.0) / static_cast<double>(pids_.size() + 2);
    EXPECT_NEAR(static_cast<double>(answer.bytes), kAll * share, kAll / 20.0);
    bytes += answer.bytes;
  }
  EXPECT_EQ(bytes, kAll);
}

TEST_P(FillRanksTest, BlocksAreWrittenAfterTheStream) {
  for (const FillAnswer& answer : run([](FillSetup& setup) { setup.busy_seconds = 0.2; })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 1u);
    EXPECT_EQ(answer.wrong, 0u);
  }
}

TEST_P(FillRanksTest, FewBytesAreLeftToEach) {
  const auto few = [](FillSetup& setup) { setup.sizes = {1000, 0, (1 << 20) - 1001, 0, 0}; };
  for (const FillAnswer& answer : run(few)) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_EQ(answer.bytes, 0u);
  }
  for (const FillAnswer& answer : run([](FillSetup& setup) { setup.sizes = {1000, 0, (1 << 20) - 1000}; })) {
    EXPECT_EQ(answer.filled, 1u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_EQ(answer.warnings, 0) << "a ring had no room for all its slots";
  }
}

TEST_P(FillRanksTest, OtherFactsAndOtherSizesAreRefusedInAll) {
  for (const FillAnswer& answer :
       run([](FillSetup& setup) { put(setup.facts, "number " + std::to_string(setup.rank)); })) {
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_THAT(answer.error(), AllOf(HasSubstr("Rank 0: number 0"), HasSubstr("Rank 1: number 1")));
  }
  for (const FillAnswer& answer : run([](FillSetup& setup) { setup.sizes[0] += setup.rank; })) {
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_THAT(answer.error(), HasSubstr("the same data"));
  }
}

TEST_P(FillRanksTest, OneWhoseFunctionThrowsIsNamed) {
  for (const FillAnswer& answer : run([](FillSetup& setup) {
         setup.throws_at = kLarge - 1;  // in the part of one of them
         setup.busy_seconds = 0.3;
       })) {
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_THAT(answer.error(), HasSubstr("this byte is broken"));
    EXPECT_FALSE(answer.is_busy) << "copies into the blocks are still to come";
  }
}

TEST_P(FillRanksTest, AKilledOneIsNamed) {
  for (const std::uint64_t bytes : {0, 1 << 20, 5 << 20, 9 << 20}) {
    pids_.clear();
    for (const FillAnswer& answer : run(
             [&](FillSetup& setup) {
               if (setup.rank == 1) setup.dies_after = bytes;
             },
             1)) {
      EXPECT_EQ(answer.filled, 0u);
      EXPECT_THAT(answer.error(), HasSubstr("PID " + std::to_string(pids_[1])));
    }
  }
}

TEST_P(FillRanksTest, OneThatIsKilledBeforeTheyMeetIsNamed) {
  for (const FillAnswer& answer : run(
           [&](FillSetup& setup) {
             setup.dies_as_they_meet = setup.rank == 1;
             setup.all = kAll;
           },
           1)) {
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_THAT(answer.error(), HasSubstr("PID " + std::to_string(pids_[1]) + ") has ended"));
  }
}

TEST_P(FillRanksTest, WaitingCanBeEnded) {
  const std::vector<FillAnswer> answers = run([](FillSetup& setup) {
    setup.is_interrupted = setup.rank == 0;
    if (setup.rank == 1) setup.slow_us = 15'000;
  });
  for (const FillAnswer& answer : answers) EXPECT_EQ(answer.filled, 0u);
  EXPECT_EQ(answers[0].error(), "enough of it");
  EXPECT_THAT(answers[1].error(), HasSubstr("Rank 0"));
}

TEST_P(FillRanksTest, AQuickFillCanBeEnded) {
  const std::vector<FillAnswer> answers =
      run([](FillSetup& setup) { setup.is_interrupted = setup.rank == 0; });
  EXPECT_EQ(answers[0].filled, 0u);
  EXPECT_EQ(answers[0].error(), "enough of it");
}

INSTANTIATE_TEST_SUITE_P(Groups, FillRanksTest,
                         ::testing::ValuesIn(needed_here(std::vector<Devices>{
                             {"Host", {"host:0", "host:1"}},
                             {"HostLate3", {"host:0,late=1", "host:1,late=1", "host:2,late=1"}},
                             {"FakeCuda3", {"cuda:0", "cuda:1", "cuda:2"}},
                             {"Cuda", {"gpu:0", "gpu:1"}}})),
                         [](const auto& each) { return each.param.name; });

class FakeFills : public FillRanksTest {};

TEST_P(FakeFills, OneWithLittleMemoryGetsSmallParts) {
  for (const FillAnswer& answer : run([](FillSetup& setup) {
         if (setup.rank == 1) setup.free_bytes = 12 << 20;  // parts of 2 MiB need 22
       })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 1u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_EQ(answer.warnings, 0) << "a ring had no room for all its slots";
  }
}

TEST_P(FakeFills, PartsOfFastLinksTakeNoMoreThanHalfOfTheFreeMemory) {
  constexpr std::uint64_t kFree = std::uint64_t{24} << 20;
  const std::vector<FillAnswer> answers = run([&](FillSetup& setup) {
    setup.free_bytes = kFree;
    setup.link_rate = setup.rank == 0 ? 90e9 : 10e9;
  });
  for (const FillAnswer& answer : answers) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 1u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_LE(answer.taken, kFree / 2);
  }
  EXPECT_GT(answers[0].taken, kFree / 4);
}

TEST_P(FakeFills, IfOneHasHardlyAnyMemoryTheBytesAreLeftToEach) {
  for (const FillAnswer& answer : run([](FillSetup& setup) {
         if (setup.rank == 1) setup.free_bytes = 2 << 20;
         setup.calls = 2;
       })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_EQ(answer.bytes, 0u);
    EXPECT_EQ(answer.warnings, 1);
  }
}

TEST_P(FakeFills, TwoOnOneGpuAreRefusedInAll) {
  for (const FillAnswer& answer : run([](FillSetup& setup) { put(setup.device, "cuda:0"); })) {
    EXPECT_THAT(answer.error(), HasSubstr("Ranks 0 and 1"));
    EXPECT_EQ(answer.bytes, 0u);
  }
}

TEST_P(FakeFills, WithoutPeerAccessTheBytesAreLeftToEach) {
  for (const FillAnswer& answer : run([](FillSetup& setup) {
         setup.peer_access = setup.rank != 1;
         setup.calls = 3;
       })) {
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.filled, 0u);
    EXPECT_EQ(answer.wrong, 0u);
    EXPECT_EQ(answer.bytes, 0u);
    EXPECT_EQ(answer.warnings, 1);
    EXPECT_EQ(answer.met, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, FakeFills, ::testing::Values(Devices{"FakeCuda", {"cuda:0", "cuda:1"}}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::testing
