#include "fake_driver/fake_cuda_controls.hpp"
#include "loader/loader_fixture.hpp"
#include "loader/ranks.hpp"
#include "support/device_cases.hpp"
#include "support/faulty_backend.hpp"
#include "support/fork.hpp"
#include "support/other_process.hpp"
#include "support/wrong_bytes_backend.hpp"

#include <penstock/loader/loader.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

/// Groups of processes. Each rank is a process of this program; the tests tell them what to do, and the ranks
/// check the bytes of their batches by themselves.
namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct RankSetup {
  std::array<char, 64> device{};
  std::array<char, 128> key{};
  std::uint64_t rank = 0;
  std::uint64_t ranks = 2;
  std::uint64_t samples = 203;
  std::uint64_t batch = 16;
  std::uint64_t seed = 3;
  std::uint64_t prefetch = 2;
  int timeout_ms = 60'000;
  bool shuffle = true;
  bool peer_access = true;
  int first_gpu = 0;   ///< of those that the fake driver has, the one that the rank sees as number 0
  int gpus = 3;        ///< that it sees
  bool zeros = false;  ///< in one of the fields
  std::uint64_t fails_at = ~std::uint64_t{0};  ///< the sample whose reading throws, if there are zeros
  std::uint64_t slow_at = ~std::uint64_t{0};   ///< the same, whose reading takes so long
  int slow_ms = 0;
  bool has_sampler = false;                      ///< a batch sampler gives the same order
  std::uint64_t differs_at = ~std::uint64_t{0};  ///< the batch from which on its samples are others
  std::uint64_t ends_at = ~std::uint64_t{0};     ///< the batch in whose place its first epoch ends
  double link_rate = 0;                          ///< of its profile, bytes per second; 0: it has none
  bool is_measured = true;                       ///< its profile
  bool has_no_memory = false;                    ///< when it asks for some, twice
  WrongBytesBackend::Harm harm{};                ///< to what it reads of others
};

/// fail: waits for the device fail from now on.
enum class Do : int { read, start_epoch, leave_epoch, restore, close, describe, fail, heal, fork, live, end };
struct Command {
  Do what = Do::end;
  std::uint64_t number = 0;  ///< of batches to read; the epoch; of samples consumed
  int pause_us = 0;          ///< after each batch
};
struct Answer {
  std::uint64_t batches = 0;
  std::uint64_t link_bytes = 0;
  std::uint64_t slots = 0;
  bool wrong = false;  ///< a batch had other bytes than expected
  std::array<char, 600> text{};

  [[nodiscard]] std::string error() const { return text.data(); }
};

/// Gives the batches of a Sampler.
class SamplerOfBatches final : public BatchSampler {
 public:
  SamplerOfBatches(const RankSetup& setup, const Sampler& order) : setup_(setup), order_(order) {}
  void start_epoch(std::uint64_t epoch) override {
    order_.start_epoch(epoch);
    given_ = 0;
  }
  bool next(std::vector<std::uint64_t>& indices) override {
    if (order_.batches_left() == 0 || (order_.epoch() == 0 && given_ == setup_.ends_at)) return false;
    indices.resize(static_cast<std::size_t>(setup_.batch));
    indices.resize(order_.next(indices));
    if (given_++ >= setup_.differs_at) indices.back() = (indices.back() + 1) % setup_.samples;
    return true;
  }

 private:
  const RankSetup setup_;
  Sampler order_;
  std::uint64_t given_ = 0;
};

LoaderOptions options_of(const RankSetup& setup, const Device& device, const Sampler& order) {
  LoaderOptions options{.batch_size = setup.batch,
                        .prefetch_depth = static_cast<std::size_t>(setup.prefetch),
                        .profile = profile_of(device, setup.link_rate)};
  if (options.profile) options.profile->measured = setup.is_measured;
  if (setup.has_sampler) {
    options.batch_sampler = std::make_shared<SamplerOfBatches>(setup, order);
    options.data_may_change = true;
  } else {
    options.shuffle = setup.shuffle;
    options.seed = setup.seed;
  }
  return options;
}

/// The device of a rank. What it reads of others may arrive wrong.
Device device_of(const RankSetup& setup) {
  const Device device = open_for_tests(setup.device.data());
  if (setup.has_no_memory) {
    const auto poor = std::make_shared<FaultyBackend>(device.shared_backend());
    poor->fail(Entry::device_allocate, 1, 2, [] { throw OutOfMemory("a test's memory", 1, 1, 0); });
    return Device(poor);
  }
  if (setup.harm == WrongBytesBackend::Harm::none) return device;
  const auto wrong = std::make_shared<WrongBytesBackend>(device.shared_backend());
  wrong->harms_d2d = [device, harm = setup.harm](const void* /*destination*/, const void* source) {
    return device.owns(source) ? WrongBytesBackend::Harm::none : harm;
  };
  return Device(wrong);
}

/// A rank: its loader, its consumer, and the order that the batches should have.
class Rank {
 public:
  explicit Rank(const RankSetup& setup)
      : setup_(setup),
        device_(device_of(setup)),
        stream_(device_.create_stream()),
        data_(dataset()),
        pinned_(make_pinned_pool(device_, {.segment_bytes = 1 << 20})),
        expected_(data_.sample_count(), {setup.shuffle, setup.seed, setup.batch, false, {}}),
        loader_(std::make_unique<Loader>(
            data_,
            Destination::rank(device_, {.meeting = {.key = setup.key.data(),
                                                    .processes = static_cast<std::size_t>(setup.ranks)},
                                        .rank = static_cast<std::size_t>(setup.rank),
                                        .timeout = std::chrono::milliseconds(setup.timeout_ms)}),
            options_of(setup, device_, expected_))) {}

  void run(const Command& command, Answer& answer) {
    switch (command.what) {
      case Do::read:
        for (std::uint64_t i = 0; i < command.number && !answer.wrong; ++i) {
          answer.wrong = !read();
          ++answer.batches;
          std::this_thread::sleep_for(std::chrono::microseconds(command.pause_us));
        }
        break;
      case Do::start_epoch:
        loader_->start_epoch(command.number);
        expected_.start_epoch(command.number);
        break;
      case Do::leave_epoch:
        loader_->leave_epoch();
        break;
      case Do::restore: {
        SamplerState state = expected_.state();
        state.epoch = 4;
        state.consumed = command.number;
        loader_->restore(state);
        expected_.restore(state);
        break;
      }
      case Do::describe:
        put(answer.text, loader_->describe().front());
        break;
      case Do::close:
        loader_->close();
        break;
      case Do::fail:
        FakeCuda(PENSTOCK_FAKE_DRIVER).fail("cuStreamSynchronize", 0, 700);
        return;
      case Do::heal:
        FakeCuda(PENSTOCK_FAKE_DRIVER).reset();
        return;
      case Do::fork:
        answer.wrong = !succeeds_in_child([&] { return is_refused_to_a_child(); });
        return;
      case Do::live:
        loader_.reset();
        pinned_ = make_pinned_pool(device_);
        put(answer.text, std::to_string(device_.memory().total - device_.memory().free) + " bytes");
        return;
      case Do::end:
        return;
    }
    const FeedStatistics statistics = loader_->stats();
    answer.link_bytes = statistics.link_bytes;
    answer.slots = statistics.slots;
  }

 private:
  [[nodiscard]] bool is_refused_to_a_child() {
    return says_forked([&] { static_cast<void>(loader_->next(stream_)); }) &&
           says_forked([&] { loader_->start_epoch(1); }) &&
           says_forked([&] { static_cast<void>(loader_->state()); }) &&
           says_forked([&] { static_cast<void>(loader_->stats()); }) &&
           says_forked([&] { static_cast<void>(loader_->timeline()); });
  }

  [[nodiscard]] Dataset dataset() const {
    FieldReaderPtr read = as_callback(random_field("read", DType::float32, {5}, setup_.samples, 3));
    if (setup_.zeros) {
      const Field field{.name = "read", .dtype = DType::float32, .shape = {5}};
      read = read_callback(field, setup_.samples,
                           [setup = setup_](std::uint64_t sample, std::span<std::byte> to) {
                             if (sample == setup.fails_at) throw InvalidArgument("this sample is broken");
                             if (sample == setup.slow_at) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(setup.slow_ms));
                             }
                             std::ranges::fill(to, std::byte{0});
                             return to.size();
                           });
    }
    return Dataset({random_field("images", DType::uint8, {3, 11, 7}, setup_.samples, 1),
                    random_field("labels", DType::int64, {}, setup_.samples, 2), std::move(read)});
  }

  /// Takes the next batch, or an epoch's end and the next one. False if it has other bytes than expected.
  [[nodiscard]] bool read() {
    std::optional<DeviceBatch> batch = loader_->next(stream_);
    if (expected_.batches_left() == 0) {
      if (batch) return false;
      expected_.start_epoch(expected_.epoch() + 1);
      batch = loader_->next(stream_);
    }
    if (!batch) return false;
    std::vector<std::uint64_t> indices(static_cast<std::size_t>(setup_.batch));
    indices.resize(expected_.next(indices));
    if (batch->epoch() != expected_.epoch() || batch->indices() != indices) return false;
    bool good = true;
    for (std::size_t f = 0; f < batch->field_count(); ++f) {
      const DeviceField& field = batch->field(f);
      std::vector<std::byte> wanted(indices.size() * data_.sample_bytes(f));
      if (!setup_.zeros || f < 2) data_.gather(f, indices, wanted);
      const Buffer there = pinned_.allocate(field.bytes);
      stream_.copy(there.data(), field.data, field.bytes, CopyDirection::d2h);
      stream_.synchronize();
      good = good && first_difference({there.data(), field.bytes}, wanted) == -1;
    }
    // Old bytes in a slot, or bytes that others read from it, would show. Nobody waits for this here.
    stream_.occupy(0.0005);
    for (std::size_t f = 0; f < batch->field_count(); ++f) {
      stream_.fill(batch->field(f).data, 0x5A, batch->field(f).bytes);
    }
    return good;
  }

  const RankSetup setup_;
  const Device device_;
  const Stream stream_;
  const Dataset data_;
  Pool pinned_;
  Sampler expected_;
  std::unique_ptr<Loader> loader_;
};

TEST(OtherRank, DISABLED_Feeds) {
  const Talk starter = OtherProcess::starter();
  const auto setup = starter.receive<RankSetup>();
  if (std::string_view(setup.device.data()).starts_with("cuda")) {
    const FakeCuda fake(PENSTOCK_FAKE_DRIVER);
    fake.set_devices(setup.gpus);
    fake.set_first_gpu(setup.first_gpu);
    fake.set_peer_access(setup.peer_access ? 1 : 0);
  }
  std::unique_ptr<Rank> rank;
  Answer made;
  try {
    rank = std::make_unique<Rank>(setup);
  } catch (const Error& error) {
    put(made.text, error.what());
  }
  starter.send(made);
  for (;;) {
    const auto command = starter.receive<Command>();
    if (command.what == Do::end) return;
    Answer answer;
    try {
      if (rank != nullptr) rank->run(command, answer);
    } catch (const Error& error) {
      put(answer.text, error.what());
    }
    starter.send(answer);
  }
}

constexpr std::uint64_t kSampleBytes = 3 * 11 * 7 + 8 + 5 * 4;

class RankLoaderTest : public ::testing::TestWithParam<Devices> {
 protected:
  using Change = std::function<void(RankSetup&)>;

  void SetUp() override {
    if (are_gpus() && !missing_gpus().empty()) GTEST_SKIP() << missing_gpus();
  }

  /// Starts the ranks; returns what their constructors said.
  std::vector<std::string> start(const Change& change = {}) {
    static int group = 0;
    const std::string key = "ranks of " + std::to_string(getpid()) + " " + std::to_string(++group);
    for (std::size_t rank = 0; rank < GetParam().specs.size(); ++rank) {
      RankSetup setup{.rank = rank, .ranks = GetParam().specs.size(), .peer_access = !are_apart()};
      put(setup.device, GetParam().specs[rank]);
      put(setup.key, key);
      if (change) change(setup);
      ranks_.push_back(std::make_unique<OtherProcess>("OtherRank.DISABLED_Feeds"));
      ranks_.back()->send(setup);
    }
    std::vector<std::string> errors;
    for (const auto& rank : ranks_) errors.push_back(rank->receive<Answer>().error());
    return errors;
  }
  /// Starts ranks of which the first, or all of them, wait only briefly for the others, and has them read
  /// `batches`. If that fails, as on a busy machine, they wait longer.
  void start_impatient(bool all_are, std::uint64_t batches = 0, const Change& change = {}) {
    for (int timeout_ms = 300; timeout_ms < 120'000; timeout_ms *= 4) {
      ranks_.clear();
      const std::vector<std::string> errors = start([&](RankSetup& setup) {
        setup.timeout_ms = all_are || setup.rank == 0 ? timeout_ms : 20 * timeout_ms;
        if (change) change(setup);
      });
      if (!std::ranges::all_of(errors, &std::string::empty)) continue;
      const std::vector<Answer> answers = all({Do::read, batches});
      if (std::ranges::all_of(answers, [](const Answer& answer) { return answer.error().empty(); }))
        return expect_good(answers, batches);
    }
    ADD_FAILURE() << "the ranks do not come";
  }
  std::vector<Answer> all(const Command& command) {
    for (const auto& rank : ranks_) rank->send(command);
    std::vector<Answer> answers;
    for (const auto& rank : ranks_) answers.push_back(rank->receive<Answer>());
    return answers;
  }
  [[nodiscard]] Answer one(std::size_t rank, const Command& command) const {
    ranks_[rank]->send(command);
    return ranks_[rank]->receive<Answer>();
  }
  void expect_good(const std::vector<Answer>& answers, std::uint64_t batches = 0) {
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      EXPECT_EQ(answers[rank].error(), "") << "rank " << rank;
      EXPECT_EQ(answers[rank].batches, batches) << "rank " << rank;
      EXPECT_FALSE(answers[rank].wrong) << "rank " << rank;
    }
  }
  /// All read `batches` good ones, and then fail with a message that contains `text`.
  void expect_all_fail(std::uint64_t batches, const char* text) {
    for (const Answer& answer : all({Do::read, 100})) {
      EXPECT_EQ(answer.batches, batches) << answer.error();
      EXPECT_FALSE(answer.wrong);
      EXPECT_THAT(answer.error(), HasSubstr(text));
    }
  }
  /// Of a GPU, other programs and the driver itself have memory, too.
  void expect_no_memory_left(const std::vector<Answer>& answers) {
    for (const Answer& answer : answers)
      EXPECT_THAT(answer.error(), ContainsRegex(are_gpus() ? "^[0-9]+ bytes" : "^0 bytes"));
  }
  void expect_all_end() {
    for (const auto& rank : ranks_) rank->send(Command{Do::end});
    for (const auto& rank : ranks_) EXPECT_TRUE(rank->wait());
  }
  /// The ranks start, bring whole batches, and all say why.
  void expect_whole_batches(const Change& change, const std::array<std::string, 2>& why) {
    const std::vector<std::string> errors = start([&](RankSetup& setup) {
      setup.timeout_ms = 10'000;
      change(setup);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    const std::vector<Answer> answers = all({Do::read, 30});
    expect_good(answers, 30);
    for (const Answer& answer : answers) EXPECT_GT(answer.link_bytes, 2 * 203 * (kSampleBytes - 7));
    for (const Answer& answer : all({Do::describe})) {
      EXPECT_THAT(answer.error(), AllOf(HasSubstr("whole batches"), HasSubstr(why[0]), HasSubstr(why[1])));
    }
    expect_good(all({Do::close}));
    expect_all_end();
    ranks_.clear();
  }
  /// In the first rank. The ranks go on.
  void expect_a_forked_child_refused() {
    start();
    expect_good(all({Do::read, 2}), 2);
    EXPECT_FALSE(one(0, {Do::fork}).wrong);
    expect_good(all({Do::read, 20}), 20);
    expect_all_end();
  }
  [[nodiscard]] std::size_t size() const { return ranks_.size(); }
  [[nodiscard]] static bool are_gpus() { return GetParam().specs.front().starts_with("gpu"); }
  /// True if the devices do not reach each other.
  [[nodiscard]] static bool are_apart() { return GetParam().name.ends_with("Apart"); }

  std::vector<std::unique_ptr<OtherProcess>> ranks_;
};

TEST_P(RankLoaderTest, AllGetTheSameBatchesAndEachByteCrossesOneLinkIfTheyReachEachOther) {
  for (const std::string& error : start()) EXPECT_EQ(error, "");
  const std::vector<Answer> answers = all({Do::read, 3 * 13});  // three epochs
  expect_good(answers, 3 * 13);
  const std::size_t parts = are_apart() ? 1 : size();
  for (const Answer& answer : answers) {
    // With a few batches that are ahead. Labels are narrowed on the wire.
    EXPECT_GT(answer.link_bytes, 3 * 203 * (kSampleBytes - 7) * 9 / 10 / parts);
    EXPECT_LT(answer.link_bytes, (3 * 203 + 6 * 16) * kSampleBytes / parts + 6 * 16 * kSampleBytes);
  }
  const std::string how = are_apart()
                              ? "whole batches over this link: (rank .: )?(host devices reach|.* cannot map)"
                              : "1/" + std::to_string(size()) + " of each batch";
  for (const Answer& answer : all({Do::describe})) EXPECT_THAT(answer.error(), ContainsRegex(how));
  expect_good(all({Do::close}));
  expect_no_memory_left(all({Do::live}));
  expect_all_end();
}

TEST_P(RankLoaderTest, SlowConsumersAndOddBatchesChangeNothing) {
  for (const auto& [batch, prefetch] : {std::pair{1, 1}, {2, 3}, {7, 1}, {203, 2}}) {
    for (const std::string& error : start([&](RankSetup& setup) {
           setup.batch = static_cast<std::uint64_t>(batch);
           setup.prefetch = static_cast<std::uint64_t>(prefetch);
           setup.samples = batch == 203 ? 203 : 31;
           setup.shuffle = batch != 2;
         })) {
      EXPECT_EQ(error, "");
    }
    for (std::size_t rank = 0; rank < size(); ++rank) {
      ranks_[rank]->send(Command{Do::read, 40, rank == 1 ? 2000 : 0});
    }
    std::vector<Answer> answers;
    for (const auto& rank : ranks_) answers.push_back(rank->receive<Answer>());
    expect_good(answers, 40);
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, AllGoToAnotherPlaceTogether) {
  start();
  expect_good(all({Do::read, 3}), 3);
  expect_good(all({Do::start_epoch, 7}));
  expect_good(all({Do::read, 5}), 5);
  expect_good(all({Do::restore, 32}));
  expect_good(all({Do::read, 20}), 20);
  expect_good(all({Do::start_epoch, 0}));
  expect_good(all({Do::read, 13}), 13);
  expect_good(all({Do::start_epoch, 1}));  // where they are
  expect_good(all({Do::read, 1}), 1);
  expect_all_end();
}

TEST_P(RankLoaderTest, TheirPartsAreAsLargeAsTheirLinksAreFast) {
  for (const bool has_sampler : {false, true}) {
    for (const std::string& error : start([&](RankSetup& setup) {
           setup.has_sampler = has_sampler;
           setup.samples = 204;
           setup.batch = 12;
           setup.link_rate = setup.rank == 1 ? 40e9 : 20e9;
         })) {
      EXPECT_EQ(error, "");
    }
    const std::vector<Answer> answers = all({Do::read, 200});
    expect_good(answers, 200);
    const auto bytes = [&](std::size_t rank) { return static_cast<double>(answers[rank].link_bytes); };
    for (std::size_t rank = 0; rank < size(); ++rank) {
      EXPECT_NEAR(bytes(rank) / bytes(1), rank == 1 || are_apart() ? 1 : 0.5, 0.06) << "rank " << rank;
    }
    const std::vector<std::string> parts = size() == 2 ? std::vector<std::string>{"4/12", "8/12"}
                                                       : std::vector<std::string>{"3/12", "6/12", "3/12"};
    const std::vector<Answer> said = all({Do::describe});
    for (std::size_t rank = 0; rank < size() && !are_apart(); ++rank) {
      EXPECT_THAT(said[rank].error(), HasSubstr("by its measured rate, " + parts[rank] + " of each batch"));
    }
    expect_good(all({Do::close}));
    expect_no_memory_left(all({Do::live}));
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, UnequalPartsOfOddBatchesGoToAnotherPlaceTogether) {
  for (const std::uint64_t batch : {1, 2, 7, 16}) {
    start([&](RankSetup& setup) {
      setup.samples = 31;
      setup.batch = batch;
      setup.link_rate = 1e9 * static_cast<double>(1 + 10 * setup.rank);
    });
    expect_good(all({Do::read, 40}), 40);
    expect_good(all({Do::restore, 16}));
    expect_good(all({Do::read, 20}), 20);
    expect_good(all({Do::start_epoch, 7}));
    expect_good(all({Do::read, 20}), 20);
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, DifferentPlacesAreRefused) {
  start();
  expect_good(all({Do::read, 3}), 3);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    ranks_[rank]->send(Command{Do::start_epoch, 3 + rank});
  }
  for (const auto& rank : ranks_) {
    EXPECT_THAT(rank->receive<Answer>().error(), HasSubstr("go to different places"));
  }
  EXPECT_THAT(one(0, {Do::read, 1}).error(), HasSubstr("different places"));
  expect_good(all({Do::start_epoch, 3}));
  expect_good(all({Do::read, 13}), 13);
  expect_all_end();
}

TEST_P(RankLoaderTest, OneThatGoesElsewhereIsNamedAndMayBeFollowed) {
  start();
  expect_good(all({Do::read, 3}), 3);
  for (std::size_t rank = 1; rank < size(); ++rank) ranks_[rank]->send(Command{Do::start_epoch, 7});
  const Answer answer = one(0, {Do::read, 100});
  EXPECT_FALSE(answer.wrong);
  EXPECT_THAT(answer.error(), HasSubstr("went to another epoch or place"));
  EXPECT_EQ(one(0, {Do::start_epoch, 7}).error(), "");
  for (std::size_t rank = 1; rank < size(); ++rank) EXPECT_EQ(ranks_[rank]->receive<Answer>().error(), "");
  expect_good(all({Do::read, 20}), 20);
  expect_all_end();
}

TEST_P(RankLoaderTest, AllGetTheBatchesOfSamplersThatAgree) {
  for (const auto& [batch, prefetch] : {std::pair{1, 1}, {2, 3}, {16, 2}}) {
    for (const std::string& error : start([&](RankSetup& setup) {
           setup.has_sampler = true;
           setup.batch = static_cast<std::uint64_t>(batch);
           setup.prefetch = static_cast<std::uint64_t>(prefetch);
         })) {
      EXPECT_EQ(error, "");
    }
    for (std::size_t rank = 0; rank < size(); ++rank) {
      ranks_[rank]->send(Command{Do::read, 60, rank == 1 ? 1000 : 0});
    }
    std::vector<Answer> answers;
    for (const auto& rank : ranks_) answers.push_back(rank->receive<Answer>());
    expect_good(answers, 60);
    EXPECT_THAT(one(0, {Do::restore, 32}).error(), HasSubstr("the sampler keeps it"));
    expect_good(all({Do::close}));
    expect_no_memory_left(all({Do::live}));
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, OneThatDrawsOtherSamplesIsNamedInTheirPlace) {
  start([](RankSetup& setup) {
    setup.has_sampler = true;
    if (setup.rank == 1) setup.differs_at = 5;
  });
  expect_all_fail(5, "drawn other samples");
  expect_all_end();
}

TEST_P(RankLoaderTest, OneWhoseEpochEndsEarlierIsNamed) {
  start([](RankSetup& setup) {
    setup.has_sampler = true;
    if (setup.rank == 1) setup.ends_at = 5;
  });
  expect_all_fail(5, "drawn other samples");
  expect_good(all({Do::start_epoch, 1}));
  expect_good(all({Do::read, 20}), 20);
  expect_all_end();
}

TEST_P(RankLoaderTest, AnEpochIsLeftWithoutTheOthersAndStartedWithThem) {
  for (const bool has_sampler : {false, true}) {
    start([&](RankSetup& setup) { setup.has_sampler = has_sampler; });
    expect_good(all({Do::read, 4}), 4);
    for (std::size_t rank = 0; rank < size(); ++rank) {
      expect_good({one(rank, {Do::leave_epoch})});
      EXPECT_THAT(one(rank, {Do::read, 1}).error(), HasSubstr("The epoch was left"));
    }
    expect_good(all({Do::start_epoch, 1}));
    expect_good(all({Do::read, 13}), 13);
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, OneThatClosesEarlyIsNamed) {
  start();
  expect_good(all({Do::read, 3}), 3);
  EXPECT_EQ(one(1, {Do::close}).error(), "");
  const Answer answer = one(0, {Do::read, 100});
  EXPECT_FALSE(answer.wrong);
  EXPECT_THAT(answer.error(), HasSubstr("has left"));
  expect_all_end();
}

TEST_P(RankLoaderTest, ThoseThatCloseFirstLetASlowOneHaveTheirParts) {
  start();
  const auto others = [&](auto&& call) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (rank != 1) call(*ranks_[rank]);
    }
  };
  others([](const OtherProcess& rank) { rank.send(Command{Do::read, 13}); });
  EXPECT_FALSE(one(1, {Do::read, 6}).wrong);
  ranks_[1]->send(Command{Do::read, 7, 3000});
  others([](const OtherProcess& rank) { EXPECT_EQ(rank.receive<Answer>().batches, 13u); });
  others([](const OtherProcess& rank) { rank.send(Command{Do::close}); });
  const auto slow = ranks_[1]->receive<Answer>();
  EXPECT_EQ(slow.error(), "");
  EXPECT_EQ(slow.batches, 7u);
  EXPECT_FALSE(slow.wrong);
}

TEST_P(RankLoaderTest, OneThatFailsIsNamedAndMayGoOn) {
  start([](RankSetup& setup) {
    setup.shuffle = false;
    setup.zeros = true;
    if (setup.rank + 1 == setup.ranks) setup.fails_at = 202;  // in its part of the last batch
  });
  if (are_apart()) {
    // The others have it in the batch that they bring themselves, and miss its next one.
    for (std::size_t rank = 0; rank < size(); ++rank) ranks_[rank]->send(Command{Do::read, 100});
    for (std::size_t rank = 0; rank < size(); ++rank) {
      const auto answer = ranks_[rank]->receive<Answer>();
      EXPECT_FALSE(answer.wrong);
      EXPECT_EQ(answer.batches, rank + 1 == size() ? 12u : 13u);
      EXPECT_THAT(answer.error(), HasSubstr("this sample is broken"));
    }
  } else {
    expect_all_fail(12, "this sample is broken");
  }
  expect_good(all({Do::start_epoch, 1}));
  expect_good(all({Do::read, 12}), 12);
  expect_all_end();
}

TEST_P(RankLoaderTest, OneThatDoesNothingIsNamed) {
  start_impatient(true);
  const Answer answer = one(0, {Do::read, 100});
  EXPECT_FALSE(answer.wrong);
  EXPECT_LT(answer.batches, 13u);
  EXPECT_THAT(answer.error(), AllOf(HasSubstr("lives, and has not done its part"), HasSubstr("PID")));
  EXPECT_THAT(one(0, {Do::start_epoch, 3}).error(), HasSubstr("has not followed"));
}

TEST_P(RankLoaderTest, OneThatDoesNotComeEndsTheGroupForAll) {
  start_impatient(false, 3);
  EXPECT_THAT(one(0, {Do::start_epoch, 7}).error(), HasSubstr("has not followed"));
  for (std::size_t rank = 1; rank < size(); ++rank) ranks_[rank]->send(Command{Do::start_epoch, 7});
  for (std::size_t rank = 1; rank < size(); ++rank) {
    EXPECT_THAT(ranks_[rank]->receive<Answer>().error(),
                AllOf(HasSubstr("Rank 0"), HasSubstr("failed"), HasSubstr("has not followed")))
        << "it has told them";
  }
  for (const Answer& answer : all({Do::start_epoch, 8})) {
    EXPECT_THAT(answer.error(), HasSubstr("make another loader"));
  }
  for (const Answer& answer : all({Do::read, 1}))
    EXPECT_THAT(answer.error(), HasSubstr("make another loader"));
  expect_good(all({Do::close}));
  expect_no_memory_left(all({Do::live}));
  expect_all_end();
}

TEST_P(RankLoaderTest, OtherDataIsRefused) {
  for (const std::string& error : start([](RankSetup& setup) { setup.samples = 100 + setup.rank; })) {
    EXPECT_THAT(error, AllOf(HasSubstr("100 samples"), HasSubstr("the same data")));
  }
}

TEST_P(RankLoaderTest, AKilledOneIsNamedAndNoByteIsWrong) {
  const int rounds =
      std::getenv("PENSTOCK_KILL_ROUNDS") != nullptr ? std::atoi(std::getenv("PENSTOCK_KILL_ROUNDS")) : 6;
  std::mt19937 random(static_cast<unsigned>(getpid()));
  for (int round = 0; round < rounds; ++round) {
    start();
    const std::size_t victim = random() % size();
    const std::string victim_pid = "PID " + std::to_string(ranks_[victim]->pid());
    for (const auto& rank : ranks_) rank->send(Command{Do::read, 1'000'000});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    ranks_[victim]->kill();
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (rank == victim) continue;
      const auto answer = ranks_[rank]->receive<Answer>();
      EXPECT_FALSE(answer.wrong) << "batch " << answer.batches;
      EXPECT_THAT(answer.error(), HasSubstr(victim_pid));
      EXPECT_THAT(one(rank, {Do::start_epoch, 5}).error(), HasSubstr("has ended"));
      EXPECT_EQ(one(rank, {Do::close}).error(), "");
    }
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (rank == victim) continue;
      expect_no_memory_left({one(rank, {Do::live})});
      ranks_[rank]->send(Command{Do::end});
      EXPECT_TRUE(ranks_[rank]->wait());
    }
    EXPECT_FALSE(ranks_[victim]->wait());
    ranks_.clear();
  }
}

TEST_P(RankLoaderTest, OneThatIsKilledOnTheWayToAnotherPlaceIsNamed) {
  std::mt19937 random(static_cast<unsigned>(getpid()));
  for (std::uint64_t round = 0; round < 4; ++round) {
    start();
    expect_good(all({Do::read, 2}), 2);
    const std::size_t victim = random() % size();
    const std::string victim_pid = "PID " + std::to_string(ranks_[victim]->pid());
    for (const auto& rank : ranks_) rank->send(Command{Do::start_epoch, 7});
    // On the way, or there already: then one that is not asked for batches is at rest as the others close.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (round % 2 == 0 ? 2'000 : 30'000)));
    ranks_[victim]->kill();
    const auto killed = std::chrono::steady_clock::now();
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (rank == victim) continue;
      auto answer = ranks_[rank]->receive<Answer>();
      if (answer.error().empty()) answer = one(rank, {Do::read, 1000});
      EXPECT_FALSE(answer.wrong);
      EXPECT_THAT(answer.error(), HasSubstr(victim_pid));
      EXPECT_EQ(one(rank, {Do::close}).error(), "");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(40))
        << "they wait for each other";
    ranks_.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Groups, RankLoaderTest,
    ::testing::ValuesIn(needed_here(std::vector<Devices>{
        {"Host", {"host:0,memory=64MiB", "host:1,memory=64MiB"}},
        {"HostLate3",
         {"host:0,memory=64MiB,late=1", "host:1,memory=64MiB,late=1", "host:2,memory=64MiB,late=1"}},
        {"HostSlow", {"host:0,memory=64MiB,link=0.05,peer=0.05", "host:1,memory=64MiB,link=0.05,peer=0.05"}},
        {"FakeCuda3", {"cuda:0", "cuda:1", "cuda:2"}},
        {"HostsApart", {"host:0,memory=64MiB", "host:1,memory=64MiB,late=1", "host:2,memory=64MiB"}},
        {"FakeCudasApart", {"cuda:0", "cuda:1"}},
        {"Cuda", {"gpu:0", "gpu:1"}}})),
    [](const auto& each) { return each.param.name; });

class PlainRanks : public RankLoaderTest {};

TEST_P(PlainRanks, WithoutPeerAccessEachBringsWholeBatches) {
  expect_whole_batches([](RankSetup& setup) { setup.peer_access = setup.rank != 1; },
                       {"cannot map the memory", "topo -p2p"});
}

TEST_P(PlainRanks, TwoOnOneGpuAreRefusedInAll) {
  for (const std::string& error : start([](RankSetup& setup) { put(setup.device, "cuda:1"); })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("Ranks 0 and 1"), HasSubstr("GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01")));
  }
  expect_all_end();
}

TEST_P(PlainRanks, EachMaySeeItsOwnGpuAloneAsTheFirst) {
  for (const std::string& error : start([](RankSetup& setup) {
         setup.first_gpu = static_cast<int>(setup.rank);
         setup.gpus = 1;
         put(setup.device, "cuda:0");
       })) {
    EXPECT_EQ(error, "");
  }
  expect_good(all({Do::read, 30}), 30);
  for (const Answer& answer : all({Do::describe}))
    EXPECT_THAT(answer.error(), HasSubstr("1/2 of each batch"));
  expect_good(all({Do::close}));
  expect_no_memory_left(all({Do::live}));
  expect_all_end();
}

TEST_P(PlainRanks, OneGpuThatHasAnotherNumberInEachIsRefusedInAll) {
  for (const std::string& error : start([](RankSetup& setup) {
         setup.first_gpu = static_cast<int>(setup.rank);
         put(setup.device, setup.rank == 0 ? "cuda:1" : "cuda:0");
       })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("Ranks 0 and 1"), HasSubstr("GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01")));
  }
  expect_all_end();
}

// Its device cannot say that no copy of parts is under way.
TEST_P(PlainRanks, OneThatCannotGoElsewhereEndsTheGroupForAll) {
  start();
  expect_good(all({Do::read, 3}), 3);
  EXPECT_EQ(one(0, {Do::fail}).error(), "");
  for (const Answer& answer : all({Do::start_epoch, 7})) {
    EXPECT_THAT(answer.error(), HasSubstr("cannot be waited for"));
  }
  for (const Answer& answer : all({Do::read, 1}))
    EXPECT_THAT(answer.error(), HasSubstr("cannot be waited for"));
  EXPECT_EQ(one(0, {Do::heal}).error(), "");
  expect_good(all({Do::close}));
  expect_all_end();
}

TEST_P(PlainRanks, OneThatFailsAsItClosesIsNamed) {
  for (const bool peer_access : {true, false}) {
    start([&](RankSetup& setup) { setup.peer_access = peer_access; });
    expect_good(all({Do::read, 3}), 3);
    EXPECT_EQ(one(0, {Do::fail}).error(), "");
    EXPECT_THAT(one(0, {Do::close}).error(), HasSubstr("cuStreamSynchronize"));
    const Answer answer = one(1, {Do::read, 100});
    EXPECT_FALSE(answer.wrong);
    EXPECT_THAT(answer.error(), HasSubstr("has left"));
    EXPECT_EQ(one(0, {Do::heal}).error(), "");
    expect_all_end();
    ranks_.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, PlainRanks, ::testing::Values(Devices{"FakeCuda", {"cuda:0", "cuda:1"}}),
                         [](const auto& each) { return each.param.name; });

class RanksApart : public RankLoaderTest {};

TEST_P(RanksApart, NoneIsAheadOfOneThatDoesNotAsk) {
  start_impatient(false, 0, [](RankSetup& setup) { setup.has_sampler = true; });
  Answer first = one(0, {Do::read, 5});
  EXPECT_EQ(first.batches, 0u);
  EXPECT_THAT(first.error(), HasSubstr("lives, and has not done its part"));
  ranks_[1]->send(Command{Do::read, 5});
  std::uint64_t batches = 0;
  while (!first.error().empty() && !first.wrong) {
    first = one(0, {Do::read, 5 - batches});
    batches += first.batches;
  }
  EXPECT_EQ(batches, 5u);
  expect_good({ranks_[1]->receive<Answer>()}, 5);
  expect_all_end();
}

TEST_P(RanksApart, OneThatFailsWithASamplerIsNamedAndMayGoOn) {
  start([](RankSetup& setup) {
    setup.shuffle = false;
    setup.has_sampler = true;
    setup.zeros = true;
    if (setup.rank == 1) setup.fails_at = 100;  // in batch 6
  });
  for (const auto& rank : ranks_) rank->send(Command{Do::read, 100});
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const auto answer = ranks_[rank]->receive<Answer>();
    EXPECT_FALSE(answer.wrong);
    EXPECT_EQ(answer.batches, rank == 1 ? 6u : 7u);
    EXPECT_THAT(answer.error(), HasSubstr("this sample is broken"));
  }
  expect_good(all({Do::start_epoch, 1}));
  expect_good(all({Do::read, 6}), 6);
  expect_all_end();
}

TEST_P(RanksApart, NoSlotIsLostWhereOneWaitsForTheOthersOrDiffers) {
  for (const bool differs : {false, true}) {
    start([&](RankSetup& setup) {
      setup.has_sampler = differs;
      if (differs && setup.rank == 1) setup.differs_at = 2;
    });
    for (std::uint64_t epoch = 1; epoch < 6; ++epoch) {
      // If they do not differ, the first one's thread then waits for the others to come to its third batch.
      differs ? expect_all_fail(2, "drawn other samples") : expect_good({one(0, {Do::read, 2})}, 2);
      expect_good(all({Do::start_epoch, epoch}));
    }
    for (const Answer& answer : all({Do::read, 2})) EXPECT_EQ(answer.slots, 3u);
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(RanksApart, OneThatIsWaitedForMayCloseAndSoMayThoseWhoWait) {
  start([](RankSetup& setup) { setup.has_sampler = true; });
  expect_good(all({Do::read, 3}), 3);
  ranks_[0]->send(Command{Do::read, 100});
  EXPECT_EQ(one(1, {Do::close}).error(), "");
  EXPECT_THAT(ranks_[0]->receive<Answer>().error(), HasSubstr("has left"));
  for (const Answer& answer : all({Do::close})) EXPECT_EQ(answer.error(), "");
  expect_no_memory_left(all({Do::live}));
  expect_all_end();
}

TEST_P(RanksApart, AForkedChildIsRefused) { expect_a_forked_child_refused(); }

INSTANTIATE_TEST_SUITE_P(Groups, RanksApart,
                         ::testing::Values(Devices{"HostsApart",
                                                   {"host:0,memory=64MiB", "host:1,memory=64MiB,late=1"}},
                                           Devices{"FakeCudasApart", {"cuda:0", "cuda:1"}}),
                         [](const auto& each) { return each.param.name; });

class HostRanks : public RankLoaderTest {};

// Its memory goes with it. A GPU then makes no promise about the bytes.
TEST_P(HostRanks, PartsOfOneThatHasClosedAndEndedAreNotBelieved) {
  start();
  EXPECT_EQ(one(1, {Do::describe}).error().substr(0, 2), "1/");
  ranks_[0]->send(Command{Do::read, 8});
  expect_good({one(1, {Do::read, 6})}, 6);
  expect_good({ranks_[0]->receive<Answer>()}, 8);
  EXPECT_EQ(one(0, {Do::close}).error(), "");
  ranks_[0]->send(Command{Do::end});
  EXPECT_TRUE(ranks_[0]->wait());
  const Answer answer = one(1, {Do::read, 100});
  EXPECT_FALSE(answer.wrong);
  EXPECT_EQ(answer.batches, 2u) << "those that were there before";
  EXPECT_THAT(answer.error(), HasSubstr("has left"));
}

TEST_P(HostRanks, OneThatClosesStaysUntilTheOthersHaveItsParts) {
  start();
  ranks_[0]->send(Command{Do::read, 9});
  expect_good({one(1, {Do::read, 6})}, 6);  // two more are there, and one is not taken
  expect_good({ranks_[0]->receive<Answer>()}, 9);
  ranks_[0]->send(Command{Do::close});
  ranks_[0]->send(Command{Do::end});
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // longer than others may take to unmap it
  expect_good({one(1, {Do::read, 3})}, 3);
  EXPECT_EQ(ranks_[0]->receive<Answer>().error(), "");
  EXPECT_TRUE(ranks_[0]->wait());
}

TEST_P(HostRanks, AProcessIsNotBlamedForTheTimeThatAnotherTook) {
  start([](RankSetup& setup) {
    setup.timeout_ms = 2000;
    setup.shuffle = false;
    setup.zeros = true;
    setup.slow_at = 16 + setup.rank * 8;  // in its part of the second batch
    setup.slow_ms = setup.rank == 0 ? 2800 : 3100;
  });
  expect_good(all({Do::read, 3}), 3);
  expect_all_end();
}

TEST_P(HostRanks, PartsAreEqualIfOneLinkWasNotMeasured) {
  for (const bool has_defaults : {false, true}) {
    start([&](RankSetup& setup) {
      if (setup.rank == 0 || has_defaults) setup.link_rate = 1e9 * static_cast<double>(10 + 10 * setup.rank);
      setup.is_measured = setup.rank == 0;
    });
    expect_good(all({Do::read, 20}), 20);
    for (const Answer& answer : all({Do::describe})) EXPECT_EQ(answer.error().substr(0, 4), "1/2 ");
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(HostRanks, PartsAreEqualIfTheirLinksAreAbout) {
  for (const auto& [rate, part] : {std::pair{9.6e9, "1/2 of"}, {9.4e9, "by its measured rate, 4"}}) {
    start([ceiling = rate](RankSetup& setup) {
      setup.samples = setup.batch = 1000;
      setup.link_rate = setup.rank == 0 ? 10e9 : ceiling;
    });
    EXPECT_EQ(one(1, {Do::describe}).error().find(part), 0u);
    expect_good(all({Do::read, 4}), 4);
    expect_all_end();
    ranks_.clear();
  }
}

TEST_P(HostRanks, HostDevicesOfOneNameAreDifferent) {
  for (const std::string& error : start([](RankSetup& setup) { put(setup.device, "host:0"); })) {
    EXPECT_EQ(error, "");
  }
  expect_good(all({Do::read, 20}), 20);
  expect_all_end();
}

TEST_P(HostRanks, OneWithoutMemoryForWholeBatchesIsNamed) {
  const std::vector<std::string> errors = start([](RankSetup& setup) {
    setup.batch = 203;
    put(setup.device, setup.rank == 1 ? "host:1,memory=64KiB,late=1" : "host:0,memory=64MiB");
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("memory"));
  const Answer answer = one(0, {Do::read, 100});
  EXPECT_EQ(answer.batches, 0u);
  EXPECT_THAT(answer.error(), AllOf(HasSubstr("Rank 1"), HasSubstr("memory")));
  expect_all_end();
}

TEST_P(HostRanks, IfBytesOfOthersArriveWrongEachBringsWholeBatches) {
  using Harm = WrongBytesBackend::Harm;
  for (const Harm harm : {Harm::change, Harm::drop}) {
    expect_whole_batches([&](RankSetup& setup) { setup.harm = setup.rank == 1 ? harm : Harm::none; },
                         {"rank 0 arrived wrong", "IOMMU"});
  }
}

TEST_P(HostRanks, IfBytesOfOthersCannotBeTriedEachBringsWholeBatches) {
  expect_whole_batches([](RankSetup& setup) { setup.has_no_memory = setup.rank == 1; },
                       {"cannot be tried", "a test's memory"});
}

TEST_P(HostRanks, AForkedChildIsRefused) { expect_a_forked_child_refused(); }

INSTANTIATE_TEST_SUITE_P(Groups, HostRanks,
                         ::testing::Values(Devices{"Host", {"host:0,memory=64MiB", "host:1,memory=64MiB"}}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::testing
