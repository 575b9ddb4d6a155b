#include "data/bulk_reader.hpp"

#include "data/cold_file.hpp"
#include "data/support.hpp"
#include "support/bytes.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace penstock {
namespace {

using test::cached_pages;
using testing::first_difference;
using testing::is_filled;
using testing::kPoison;

constexpr std::size_t kWindow = BulkReader::kWindow;

std::atomic<int> calls{0};

ssize_t never(int, const iovec*, int, off_t) {
  ADD_FAILURE() << "the disk was asked for bytes that are in memory";
  errno = EINVAL;
  return -1;
}

/// As a file system without direct reads.
ssize_t refuses(int, const iovec*, int, off_t) {
  ++calls;
  errno = EINVAL;
  return -1;
}

/// One block at most, and signals in between.
ssize_t in_small_parts(int descriptor, const iovec* places, int, off_t offset) {
  if (++calls % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return ::pread(descriptor, places->iov_base, std::min<std::size_t>(places->iov_len, 4096), offset);
}

ssize_t refuses_after_one(int descriptor, const iovec* places, int count, off_t offset) {
  return calls.load() == 0 ? in_small_parts(descriptor, places, count, offset)
                           : refuses(descriptor, places, count, offset);
}

std::vector<iovec> places_asked;

ssize_t notes_places(int descriptor, const iovec* places, int count, off_t offset) {
  places_asked.insert(places_asked.end(), places, places + count);
  return ::preadv(descriptor, places, count, offset);
}

class BulkReads : public ::testing::Test {
 protected:
  void SetUp() override { calls = 0; }

  /// Three windows, and a few bytes that are no whole block.
  [[nodiscard]] std::filesystem::path write() {
    content_ = test::random_bytes(3 * kWindow + 777, 1);
    return directory_.write("file", content_);
  }

  /// Reads `bytes` to an address that is `shift` past a page, and compares them and the bytes around them.
  void expect_read(BulkReader& reader, std::size_t offset, std::size_t bytes, std::size_t shift) const {
    SCOPED_TRACE(::testing::Message() << bytes << " bytes at " << offset << ", shifted by " << shift);
    const HostPages pages(bytes + 3 * 4096);
    std::memset(pages.bytes().data(), std::to_integer<int>(kPoison), pages.bytes().size());
    const auto place = pages.bytes().subspan(4096 + shift, bytes);
    const std::size_t there = std::min(bytes, content_.size() - std::min(offset, content_.size()));
    ASSERT_EQ(reader.read(offset, place), there);
    const auto expected = std::span(content_).subspan(std::min(offset, content_.size()), there);
    ASSERT_EQ(first_difference(place.first(there), expected), -1);
    ASSERT_TRUE(is_filled(pages.bytes().first(4096 + shift), kPoison));
    ASSERT_TRUE(is_filled(pages.bytes().subspan(4096 + shift + bytes), kPoison));
  }

  /// What Residency says to somebody who may not write the file.
  static bool has_as_another(const File& file) {
    EXPECT_EQ(::seteuid(65534), 0);
    const Residency residency(file);
    EXPECT_FALSE(residency.knows_pages());
    const bool has = residency.has(kWindow, file.size() - kWindow);
    EXPECT_EQ(::seteuid(0), 0);
    return has;
  }

  std::vector<std::byte> content_;
  test::TempDirectory directory_;
};

TEST_F(BulkReads, BytesOnTheDiskComePastTheCache) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader{File(path)};
  std::size_t sum = 0;
  for (const std::size_t shift : {0u, 8u, 512u, 1000u}) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{8}, std::size_t{512}, std::size_t{1000},
                                     std::size_t{4096}, kWindow - 5, content_.size() - 3000}) {
      for (const std::size_t bytes : {1u, 511u, 512u, 513u, 2000u, 70'000u, 1'500'000u}) {
        expect_read(reader, offset, bytes, shift);
        sum += std::min(bytes, content_.size() - offset);
      }
    }
  }
  expect_read(reader, 3, content_.size() - 3, 0);
  expect_read(reader, content_.size() - 1, 5, 0);
  expect_read(reader, content_.size() + 5000, 5, 0);
  expect_read(reader, content_.size() + 2 * kWindow, 5, 0);
  const WeightReads reads = reader.reads();
  EXPECT_EQ(reads.direct, sum + content_.size() - 3 + 1);
  EXPECT_EQ(reads.cached, 0u);
  EXPECT_EQ(reads.buffered, 0u);
  EXPECT_EQ(cached_pages(path), 0u);
}

TEST_F(BulkReads, BytesInMemoryComeFromThere) {
  BulkReader reader(File(write()), never);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1000}, kWindow - 5, content_.size() - 3000}) {
    expect_read(reader, offset, 1'500'000, 8);
  }
  EXPECT_EQ(reader.reads().cached, 3 * 1'500'000u + 3000);
  EXPECT_EQ(reader.reads().direct + reader.reads().buffered, 0u);
}

TEST_F(BulkReads, EachWindowIsAskedFor) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  std::vector<std::byte> middle(kWindow);
  static_cast<void>(File(path).read(kWindow, middle));
  BulkReader reader{File(path)};
  expect_read(reader, 0, content_.size(), 0);
  EXPECT_EQ(reader.reads().cached, kWindow);
  EXPECT_EQ(reader.reads().direct, content_.size() - kWindow);
}

TEST_F(BulkReads, WhatIsRefusedIsReadThroughTheCache) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader(File(path), refuses);
  expect_read(reader, 5, 3'000'000, 0);
  expect_read(reader, kWindow + 1, 1'000'000, 9);
  EXPECT_EQ(calls, 1);  // and never again
  EXPECT_EQ(reader.reads().buffered, 4'000'000u);
  EXPECT_EQ(reader.reads().direct + reader.reads().cached, 0u);
}

TEST_F(BulkReads, ARefusalMayComeLate) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader(File(path), refuses_after_one);
  expect_read(reader, 0, 3'000'000, 0);
  EXPECT_EQ(reader.reads().direct, 4096u);
  EXPECT_EQ(reader.reads().buffered, 3'000'000u - 4096);
}

TEST_F(BulkReads, ShortReadsAndSignalsGoOn) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader(File(path), in_small_parts);
  expect_read(reader, 100, 300'000, 0);
  expect_read(reader, kWindow - 100'000, 300'000, 100);
  EXPECT_EQ(reader.reads().direct, 600'000u);
  EXPECT_GT(calls, 100);
}

TEST_F(BulkReads, TheDiskWritesToAnAddressThatComplies) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader(File(path), notes_places);
  const HostPages pages(1 << 20);
  const auto is_in_place = [&](const iovec& place) {
    const auto* at = static_cast<const std::byte*>(place.iov_base);
    return at >= pages.bytes().data() && at < pages.bytes().data() + pages.bytes().size();
  };
  const auto bytes_in_place = [&](std::size_t offset, std::size_t shift) {
    places_asked.clear();
    static_cast<void>(reader.read(offset, pages.bytes().subspan(shift, 300'000)));
    std::size_t sum = 0;
    for (const iovec& place : places_asked) sum += is_in_place(place) ? place.iov_len : 0;
    return sum;
  };
  EXPECT_GE(bytes_in_place(4096, 0), 300'000u - 4096);
  EXPECT_EQ(places_asked.size(), 2u);  // the last block is there in part
  EXPECT_GE(bytes_in_place(4096 + 100, 100), 300'000u - 2 * 4096);
  EXPECT_EQ(places_asked.size(), 3u);
  EXPECT_EQ(bytes_in_place(4096, 1), 0u);
}

TEST_F(BulkReads, AFileThatIsCutShortEndsThere) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader{File(path)};
  for (const std::size_t left : {2 * kWindow + 1000, kWindow + 512, std::size_t{4096}, std::size_t{1}}) {
    std::filesystem::resize_file(path, left);
    content_.resize(left);
    expect_read(reader, left - 1, 100'000, 0);
    expect_read(reader, left - std::min<std::size_t>(left, 5000), 4 * kWindow, 8);
    expect_read(reader, left + 1, 100, 0);
  }
}

TEST_F(BulkReads, SeveralThreadsReadAtOnce) {
  const auto path = write();
  PENSTOCK_MAKE_COLD(path);
  BulkReader reader{File(path)};
  std::vector<std::byte> read(content_.size());
  constexpr std::size_t kPart = 300'001;
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next.fetch_add(kPart); at < read.size(); at = next.fetch_add(kPart)) {
        static_cast<void>(reader.read(at, std::span(read).subspan(at, std::min(kPart, read.size() - at))));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(read == content_);
  EXPECT_EQ(reader.reads().direct, content_.size());
}

TEST_F(BulkReads, AFileSystemOfMemory) {
  const std::filesystem::path folder = "/dev/shm";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "there is no /dev/shm";
  const auto path = folder / ("bulk-reader-" + std::to_string(::getpid()));
  content_ = test::random_bytes(kWindow + 777, 2);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content_.data()), static_cast<std::streamsize>(content_.size()));
  {
    BulkReader reader(File(path), never);
    expect_read(reader, 5, content_.size() - 5, 0);
    EXPECT_EQ(reader.reads().cached, content_.size() - 5);
  }
  EXPECT_TRUE(::geteuid() != 0 || has_as_another(File(path)));
  // Holes are not in memory, and the file system may refuse O_DIRECT.
  std::filesystem::resize_file(path, 3 * kWindow);
  content_.resize(3 * kWindow);
  BulkReader reader{File(path)};
  expect_read(reader, 0, content_.size(), 0);
  std::filesystem::remove(path);
}

TEST_F(BulkReads, WhoMayNotWriteAFileLearnsWhereItIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  const auto path = write();
  const File file(path);
  EXPECT_TRUE(Residency(file).knows_pages());
  EXPECT_TRUE(has_as_another(file));
  // The kernel brings in what is asked for, and a fast disk may have done so before the answer.
  bool is_cold = false;
  for (int i = 0; i < 100 && !is_cold; ++i) {
    PENSTOCK_MAKE_COLD(path);
    is_cold = !has_as_another(file);
  }
  EXPECT_TRUE(is_cold);
}

TEST_F(BulkReads, NothingStaysOpen) {
  const auto path = write();
  const auto count = [&] {
    std::ifstream maps("/proc/self/maps");
    std::size_t found = static_cast<std::size_t>(std::distance(
        std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
    for (std::string line; std::getline(maps, line);) found += line.ends_with(path.string()) ? 1 : 0;
    return found;
  };
  const std::size_t before = count();
  {
    BulkReader reader{File(path)};
    expect_read(reader, 0, 1000, 0);
    EXPECT_GT(count(), before);
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace penstock
