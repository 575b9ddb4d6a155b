#include "data/shared/block_reader.hpp"

#include "data/async_reads.hpp"
#include "data/cold_file.hpp"
#include "data/kept_samples.hpp"
#include "data/slow_disk.hpp"
#include "data/support.hpp"
#include "support/bytes.hpp"
#include "support/fork.hpp"

#include <penstock/data/chunks.hpp>
#include <penstock/data/rows.hpp>

#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

namespace penstock {
namespace {

constexpr std::size_t kPageBytes = 4096;

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* data) const { ::munmap(data, bytes); }
};

/// Files in mappings, which the page cache has forgotten.
class BlockReads : public ::testing::Test {
 protected:
  void TearDown() override { AsyncReads::stand_in(AsyncReads::kSystem); }

  /// Writes `bytes` to a file, and maps them.
  std::span<std::byte> map(std::size_t bytes, int flags = MAP_SHARED) {
    content_ = test::random_bytes(bytes, 3);
    path_ = directory_.write("x.bin", content_);
    const test::Descriptor opened(path_);
    const int rights = flags == MAP_SHARED ? PROT_READ : PROT_READ | PROT_WRITE;
    auto* const data = static_cast<std::byte*>(::mmap(nullptr, bytes, rights, flags, opened.get(), 0));
    mapping_ = {data, Unmap{bytes}};
    return {data, bytes};
  }

  /// The cache keeps pages that are mapped.
  [[nodiscard]] bool forget() {
    ::madvise(mapping_.get(), content_.size(), MADV_DONTNEED);
    return test::make_cold(path_);
  }

  static void gather(BlockReader& reader, std::span<const std::uint64_t> indices,
                     std::span<std::byte> destination) {
    reader.begin(0, indices, destination);
    reader.end(0, StoreKind::cached);
  }

  /// What an epoch reads past the page cache. Checks all bytes.
  std::uint64_t reads_of(BlockReader&& reader, std::size_t sample_bytes,
                         const std::vector<std::uint64_t>& indices) const {
    return reads_of(reader, sample_bytes, indices);
  }
  std::uint64_t reads_of(BlockReader& reader, std::size_t sample_bytes,
                         const std::vector<std::uint64_t>& indices, std::size_t batch = 100) const {
    const std::uint64_t before = reader.direct_reads();
    for (std::size_t i = 0; i < indices.size(); i += batch) {
      const auto part = std::span(indices).subspan(i, std::min(batch, indices.size() - i));
      // At an address that disks refuse.
      std::vector<std::byte> got(part.size() * sample_bytes + 1, testing::kPoison);
      gather(reader, part, std::span(got).subspan(1));
      got.erase(got.begin());
      EXPECT_EQ(testing::first_difference(got, test::pick(content_, sample_bytes, part)), -1);
    }
    return reader.direct_reads() - before;
  }

  static std::vector<std::uint64_t> shuffled(std::size_t count, std::uint64_t seed) {
    std::vector<std::uint64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937_64(seed));
    return order;
  }

  test::TempDirectory directory_;
  std::filesystem::path path_;
  std::vector<std::byte> content_;
  std::unique_ptr<std::byte, Unmap> mapping_;
};

Field samples_of(std::size_t bytes) { return {"x", DType::uint8, {bytes}}; }

TEST_F(BlockReads, OfEveryKindOfMemoryPassThePageCache) {
  constexpr std::size_t kSample = 25 * kPageBytes + 100;
  const auto mapped = map(700 * kSample);
  PENSTOCK_MAKE_COLD(path_);
  std::vector<FieldReaderPtr> chunks;
  for (std::size_t i = 0; i < 700; i += 175) {
    chunks.push_back(read_array(samples_of(kSample), mapped.subspan(i * kSample, 175 * kSample), nullptr));
    EXPECT_FALSE(BlockReader::is_of(*chunks.back())) << "it is small by itself";
  }
  const FieldReaderPtr readers[] = {
      read_array(samples_of(kSample), mapped, nullptr),
      read_strided(samples_of(kSample), mapped, kSample, nullptr),
      read_raw(path_, samples_of(kSample)),
      read_chunks("x", chunks),
  };
  const std::vector<std::uint64_t> indices = {699, 3, 401, 4, 3, 0, 402, 175, 174};
  for (const FieldReaderPtr& reader : readers) {
    ASSERT_TRUE(forget());
    ASSERT_TRUE(BlockReader::is_of(*reader));
    EXPECT_EQ(reads_of(BlockReader(reader, true, 0), kSample, indices), indices.size());
    EXPECT_EQ(test::cached_pages(path_), 0u);
    // Through it, they are asked for.
    BlockReader asking(reader, false, 0);
    EXPECT_EQ(reads_of(asking, kSample, indices), 0u);
    EXPECT_LT(test::cached_pages(path_), mapped.size() / kPageBytes / 4) << "only what was asked for";
  }
  EXPECT_EQ(reads_of(BlockReader(readers[0], true, 0), kSample, {699, 3, 4, 500}), 1u) << "of the missing";
}

TEST_F(BlockReads, OfMemoryThatIsThereAreNone) {
  const auto mapped = map(std::size_t{80} << 20);
  const auto all = read_array(samples_of(1024), mapped, nullptr);
  EXPECT_FALSE(BlockReader::is_of(*all)) << "it was written just now";
  const HostPages untouched(std::size_t{80} << 20);
  EXPECT_FALSE(BlockReader::is_of(*read_array(samples_of(1024), untouched.bytes(), nullptr)));
}

TEST_F(BlockReads, AreLookedAtAgain) {
  const auto mapped = map(std::size_t{80} << 20);
  PENSTOCK_MAKE_COLD(path_);
  BlockReader asking(read_array(samples_of(1024), mapped, nullptr), false, 0);
  EXPECT_EQ(reads_of(asking, 1024, std::vector<std::uint64_t>(1 << 16, 7), 1 << 13), 0u);
  EXPECT_TRUE(asking.asks());
  const std::vector<std::byte> all(mapped.begin(), mapped.end());
  EXPECT_EQ(reads_of(asking, 1024, std::vector<std::uint64_t>(1 << 16, 7), 1 << 13), 0u);
  EXPECT_FALSE(asking.asks());
}

// Sizes below, at and above blocks, merged reads and parts; samples side by side and apart.
TEST_F(BlockReads, BringTheBytesOfAnySize) {
  const auto mapped = map((std::size_t{3} << 20) + 777);
  PENSTOCK_MAKE_COLD(path_);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100}, std::size_t{511}, kPageBytes, 3 * kPageBytes + 5,
        std::size_t{150} << 10, (std::size_t{256} << 10) + 1, std::size_t{1} << 20}) {
    const std::size_t count = mapped.size() / bytes;
    const auto reader = read_array(samples_of(bytes), mapped.first(count * bytes), nullptr);
    BlockReader blocks(reader, true, 0);
    for (const auto& indices :
         {shuffled(std::min<std::size_t>(count, 700), bytes), std::vector<std::uint64_t>{0},
          std::vector<std::uint64_t>{count - 1, count - 1, 0}}) {
      ASSERT_TRUE(forget());
      EXPECT_EQ(reads_of(blocks, bytes, indices), indices.size());
    }
  }
}

// Straight to an address that the disk takes.
TEST_F(BlockReads, GoStraightToTheirPlace) {
  constexpr std::size_t kSample = 37 * kPageBytes;
  const auto mapped = map(20 * kSample);
  PENSTOCK_MAKE_COLD(path_);
  BlockReader blocks(read_array(samples_of(kSample), mapped, nullptr), true, 0);
  const HostPages pages(3 * kSample);
  const std::vector<std::uint64_t> indices = {17, 0, 3};
  gather(blocks, indices, pages.bytes());
  EXPECT_EQ(testing::first_difference(pages.bytes(), test::pick(content_, kSample, indices)), -1);
  EXPECT_EQ(blocks.direct_reads(), 3u);
}

TEST_F(BlockReads, OfASecondEpochAreThoseThatTheBudgetLeaves) {
  constexpr std::size_t kSample = 3000;
  constexpr std::size_t kCount = 900;
  const auto mapped = map(kCount * kSample);
  PENSTOCK_MAKE_COLD(path_);
  const auto reader = read_array(samples_of(kSample), mapped, nullptr);
  for (const std::size_t room : {std::size_t{0}, std::size_t{1}, 2 * kCount / 3, kCount, 2 * kCount}) {
    BlockReader blocks(reader, true, room * kSample + 1);
    EXPECT_EQ(reads_of(blocks, kSample, shuffled(kCount, 1)), kCount);
    for (std::uint64_t epoch = 2; epoch < 4; ++epoch) {
      EXPECT_EQ(reads_of(blocks, kSample, shuffled(kCount, epoch)), kCount - std::min(room, kCount));
    }
  }
}

TEST(KeptSamples, AreWholeWhileManyThreadsKeepThem) {
  KeptSamples<std::vector<std::byte>> kept(40 * 4096, 64);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        for (std::uint64_t sample = 0; sample < 64; ++sample) {
          kept.keep(sample, 4096, 4096, static_cast<std::byte>(sample));
          const auto* const found = kept.find(sample);
          EXPECT_TRUE(found == nullptr || testing::is_filled(*found, static_cast<std::byte>(sample)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t found = 0;
  for (std::uint64_t sample = 0; sample < 64; ++sample) {
    kept.keep(sample, 4096, 4096, static_cast<std::byte>(sample));
    found += kept.find(sample) == nullptr ? 0 : 1;
  }
  EXPECT_EQ(found, 40u);
}

TEST_F(BlockReads, OfAFileThatIsCutAreAnErrorAndNoSignal) {
  const auto mapped = map(1000 * 1000);
  PENSTOCK_MAKE_COLD(path_);
  BlockReader blocks(read_array(samples_of(1000), mapped, nullptr), true, 1 << 20);
  EXPECT_EQ(reads_of(blocks, 1000, {1, 900}), 2u);
  std::filesystem::resize_file(path_, 400'500);
  EXPECT_EQ(reads_of(blocks, 1000, {399, 900}), 1u) << "900 is kept";
  std::vector<std::byte> got(3000);
  const std::vector<std::uint64_t> indices = {3, 400, 7};
  test::expect_error<Error>(
      [&] { gather(blocks, indices, got); },
      {"x.bin", "cut short", "ends at byte 400500", "sample 400", "'x'", "byte 401000"});
}

long some_fail(aio_context_t context, long least, long most, io_event* events) {
  static std::atomic<unsigned> turn{0};
  const long got = AsyncReads::kSystem.get_events(context, least, most, events);
  for (long i = 0; i < got; ++i) {
    const unsigned fault = ++turn % 5;
    if (fault == 0) events[i].res = i % 2 == 0 ? -EIO : -ESTALE;
    if (fault == 1) events[i].res /= 3;
    if (fault == 2) events[i].res = std::min<std::int64_t>(events[i].res, 512);
  }
  return got;
}

const AsyncReads::Calls kSomeFail{AsyncReads::kSystem.setup, AsyncReads::kSystem.submit, some_fail};

TEST_F(BlockReads, ThatFailOrEndEarlyAreMadeThroughThePageCache) {
  const auto mapped = map(300 * 5000);
  PENSTOCK_MAKE_COLD(path_);
  AsyncReads::stand_in(kSomeFail);
  const auto reader = read_array(samples_of(5000), mapped, nullptr);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    BlockReader blocks(reader, true, std::size_t{1} << 20);
    reads_of(blocks, 5000, shuffled(300, seed), 50);
    AsyncReads::stand_in(AsyncReads::kSystem);
    reads_of(blocks, 5000, shuffled(300, seed + 1), 50);  // what was kept is right, too
    AsyncReads::stand_in(kSomeFail);
    ASSERT_TRUE(forget());
  }
}

TEST_F(BlockReads, ThatASandboxForbidsAreMadeThroughThePageCache) {
  const auto mapped = map(300 * 5000);
  PENSTOCK_MAKE_COLD(path_);
  const auto reader = read_array(samples_of(5000), mapped, nullptr);
  const auto refuse_to_begin = [](aio_context_t, long, iocb**) -> long {
    errno = EPERM;
    return -1;
  };
  const AsyncReads::Calls begins_none{AsyncReads::kSystem.setup, refuse_to_begin,
                                      AsyncReads::kSystem.get_events};
  AsyncReads::stand_in(begins_none);
  BlockReader refused(reader, true, 0);
  reads_of(refused, 5000, shuffled(300, 1));
  EXPECT_GT(test::cached_pages(path_), 0u);
  static std::atomic<int> setups{0};
  const auto refuse_one = [](std::size_t most, aio_context_t* context) -> long {
    return ++setups == 2 ? -1 : AsyncReads::kSystem.setup(most, context);
  };
  const AsyncReads::Calls sets_up_one{refuse_one, AsyncReads::kSystem.submit, AsyncReads::kSystem.get_events};
  AsyncReads::stand_in(sets_up_one);
  ASSERT_TRUE(forget());
  EXPECT_EQ(reads_of(BlockReader(reader, true, 0, 2), 5000, shuffled(300, 2)), 0u);
  AsyncReads::stand_in(AsyncReads::kSystem);
}

/// The process is killed if it asks for io_uring; other asynchronous reads are refused.
[[nodiscard]] bool forbid_asynchronous_reads() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(BlockReads, ThatSeccompWouldKillAreMadeThroughThePageCache) {
  const auto mapped = map(300 * 5000);
  PENSTOCK_MAKE_COLD(path_);
  EXPECT_TRUE(testing::succeeds_in_child([&] {
    if (!forbid_asynchronous_reads()) return false;
    BlockReader blocks(read_array(samples_of(5000), mapped, nullptr), true, 1 << 20);
    return reads_of(blocks, 5000, shuffled(300, 1)) == 0 && !HasFailure();
  }));
}

TEST_F(BlockReads, OfManyFilesLeaveDescriptorsToTheProgram) {
  constexpr std::size_t kFiles = 60;
  std::vector<std::byte> all;
  std::vector<std::unique_ptr<std::byte, Unmap>> mappings;
  std::vector<FieldReaderPtr> chunks;
  for (std::size_t i = 0; i < kFiles; ++i) {
    const auto mapped = map(2 * kPageBytes);
    std::filesystem::rename(path_, directory_.path() / std::to_string(i));
    PENSTOCK_MAKE_COLD(directory_.path() / std::to_string(i));
    all.insert(all.end(), content_.begin(), content_.end());
    chunks.push_back(read_array(samples_of(kPageBytes), mapped, nullptr));
    mappings.push_back(std::move(mapping_));
  }
  content_ = std::move(all);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 80, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  BlockReader blocks(read_chunks("x", chunks), true, 0);
  EXPECT_EQ(reads_of(blocks, kPageBytes, shuffled(2 * kFiles, 1), 10), 2u * 80 / 8) << "of an eighth";
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(BlockReads, LeaveAloneWhatTheProcessChangedForItself) {
  const auto mapped = map(100 * 5000, MAP_PRIVATE);
  PENSTOCK_MAKE_COLD(path_);
  mapped[5000] = content_[5000] = ~content_[5000];
  EXPECT_EQ(reads_of(BlockReader(read_array(samples_of(5000), mapped, nullptr), true, 0), 5000, {1, 0}), 0u);
}

TEST_F(BlockReads, LeaveAloneAFileThatTookTheName) {
  const auto mapped = map(100 * 5000);
  std::filesystem::rename(path_, directory_.path() / "old.bin");
  directory_.write("x.bin", test::random_bytes(100 * 5000, 9));
  PENSTOCK_MAKE_COLD(directory_.path() / "old.bin");
  BlockReader renamed(read_array(samples_of(5000), mapped, nullptr), true, 0);
  EXPECT_EQ(reads_of(renamed, 5000, {1, 70}), 2u) << "the system knows its name";
  std::filesystem::rename(directory_.path() / "x.bin",
                          directory_.path() / "old.bin");  // the mapped one is gone
  BlockReader deleted(read_array(samples_of(5000), mapped, nullptr), true, 0);
  EXPECT_EQ(reads_of(deleted, 5000, {2, 71}), 0u);
}

/// Batches of a file whose reads are counted, and their places.
class ReadsOfBatches : public BlockReads {
 protected:
  static constexpr std::size_t kSample = kPageBytes;
  static constexpr auto kMost = static_cast<long>(AsyncReads::kMost);

  void SetUp() override {
    mapped_ = map(2000 * kSample);
    PENSTOCK_MAKE_COLD(path_);
    for (std::uint64_t i = 0; i < 300; ++i) {  // apart from each other
      batches_[0].push_back(2 * i);
      batches_[1].push_back(1998 - 2 * i);
    }
  }

  [[nodiscard]] std::unique_ptr<BlockReader> reader(std::size_t lanes = 1) const {
    return std::make_unique<BlockReader>(read_array(samples_of(kSample), mapped_, nullptr), true, 0, lanes);
  }
  void begin(BlockReader& blocks, std::size_t batch) {
    places_[batch].assign(batches_[batch].size() * kSample, testing::kPoison);
    blocks.begin(0, batches_[batch], places_[batch]);
  }
  void expect_bytes(std::size_t batch) const {
    EXPECT_EQ(testing::first_difference(places_[batch], test::pick(content_, kSample, batches_[batch])), -1);
  }

  std::span<std::byte> mapped_;
  std::array<std::vector<std::uint64_t>, 2> batches_;
  std::array<std::vector<std::byte>, 2> places_;
  test::OneByOne disk_;
};

TEST_F(ReadsOfBatches, BeginWhileTheLastOfTheBatchBeforeAreUnderWay) {
  const auto blocks = reader();
  begin(*blocks, 0);
  EXPECT_EQ(disk_.under_way(), kMost);
  begin(*blocks, 1);
  EXPECT_EQ(disk_.under_way(), kMost) << "no more than the disk can use";
  blocks->end(0, StoreKind::cached);
  EXPECT_EQ(disk_.under_way(), kMost) << "those of the next batch";
  expect_bytes(0);
  blocks->end(0, StoreKind::cached);
  EXPECT_EQ(disk_.under_way(), 0);
  expect_bytes(1);
  EXPECT_EQ(blocks->direct_reads(), 600u);
}

TEST_F(ReadsOfBatches, HaveABoundOfBytesTogether) {
  constexpr std::size_t kLarge = std::size_t{128} << 10;
  BlockReader blocks(read_array(samples_of(kLarge), mapped_.first(60 * kLarge), nullptr), true, 0);
  const std::vector<std::uint64_t> indices = shuffled(60, 1);
  places_[0].resize(60 * kLarge);
  blocks.begin(0, indices, places_[0]);
  EXPECT_EQ(disk_.under_way(), 48) << "6 MiB";
  blocks.end(0, StoreKind::cached);
  EXPECT_EQ(testing::first_difference(places_[0], test::pick(content_, kLarge, indices)), -1);
}

TEST_F(ReadsOfBatches, EndBeforeTheyAreForgotten) {
  auto blocks = reader();
  begin(*blocks, 0);
  begin(*blocks, 0);
  blocks->drop();
  EXPECT_EQ(disk_.under_way(), 0) << "they write to their places";
  begin(*blocks, 1);
  blocks->end(0, StoreKind::cached);
  expect_bytes(1);
  begin(*blocks, 0);
  blocks.reset();
  EXPECT_EQ(disk_.under_way(), 0);
}

TEST_F(ReadsOfBatches, GoOnAfterAnError) {
  const auto blocks = reader();
  begin(*blocks, 1);
  std::filesystem::resize_file(path_, 1800 * kSample);
  begin(*blocks, 0);
  test::expect_error<Error>([&] { blocks->end(0, StoreKind::cached); },
                            {"x.bin", "cut short", "of field", "'x'"});
  blocks->drop();
  EXPECT_EQ(disk_.under_way(), 0);
  begin(*blocks, 0);
  blocks->end(0, StoreKind::cached);
  expect_bytes(0);
}

TEST_F(ReadsOfBatches, AreTheParentsAfterAFork) {
  auto blocks = reader();
  begin(*blocks, 0);
  begin(*blocks, 1);
  EXPECT_TRUE(testing::succeeds_in_child([&] {
    blocks.reset();
    return true;
  }));
  for (std::size_t batch = 0; batch < 2; ++batch) {
    blocks->end(0, StoreKind::cached);
    expect_bytes(batch);
  }
}

TEST_F(ReadsOfBatches, OfSeveralLanesAreApart) {
  const auto blocks = reader(4);
  std::vector<std::thread> threads;
  for (std::size_t lane = 0; lane < blocks->lanes(); ++lane) {
    threads.emplace_back([&, lane] {
      const auto indices = shuffled(2000, lane);
      std::vector<std::byte> places(indices.size() * kSample);
      const std::size_t batch = 50 * (lane + 1);
      const auto begin_at = [&](std::size_t first) {
        if (first >= indices.size()) return;
        const std::size_t count = std::min(batch, indices.size() - first);
        blocks->begin(lane, std::span(indices).subspan(first, count),
                      std::span(places).subspan(first * kSample, count * kSample));
      };
      begin_at(0);
      for (std::size_t first = 0; first < indices.size(); first += batch) {
        begin_at(first + batch);
        blocks->end(lane, StoreKind::cached);
      }
      EXPECT_EQ(testing::first_difference(places, test::pick(content_, kSample, indices)), -1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(disk_.under_way(), 0);
}

}  // namespace
}  // namespace penstock
