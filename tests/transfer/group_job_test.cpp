#include "transfer/group_job.hpp"

#include <penstock/core/bytes.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace penstock::testing {
namespace {

/// The chunks of an image that two members take in turns.
std::vector<std::size_t> chunks_of(std::size_t bytes, GroupJob::ChunkSizes sizes) {
  GroupImage image{.runs = {{nullptr, {0, bytes}}}, .base = nullptr, .sources = std::nullopt, .fill = {}};
  GroupJob job(std::make_shared<TransferState>(TransferPath::direct, CopyDirection::h2d, bytes, 1),
               std::move(image), {{.carriers = {0, 1}, .receivers = {0, 1}}}, 2, sizes);
  std::vector<std::size_t> chunks;
  std::size_t at = 0;
  for (std::size_t turn = 0; const auto chunk = job.take_chunk(turn % 2, false); ++turn) {
    EXPECT_EQ(chunk->begin, at);
    at = chunk->end;
    chunks.push_back(chunk->bytes());
  }
  EXPECT_EQ(at, bytes);
  return chunks;
}

TEST(GroupJob, ChunksGrowWhileTheLinksFillAndShrinkToAQuarterAtTheEnd) {
  const std::vector<std::size_t> chunks = chunks_of(17 * kMiB, {.first = 256 * kKiB, .largest = 2 * kMiB});
  std::vector<std::size_t> expected{256, 256, 512, 512, 1024, 1024, 2048, 2048, 2048};
  for (std::size_t& kib : expected) kib *= kKiB;
  ASSERT_GE(chunks.size(), expected.size() + 2);
  EXPECT_EQ(std::vector(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(expected.size())),
            expected);
  for (std::size_t i = expected.size(); i + 1 < chunks.size(); ++i) {
    EXPECT_LE(chunks[i], chunks[i - 1]);
    EXPECT_GE(chunks[i], 512 * kKiB);
  }
  EXPECT_EQ(chunks[chunks.size() - 2], 512 * kKiB) << "both links end together";
}

TEST(GroupJob, AFirstChunkThatIsLargeIsTheLeast) {
  const std::vector<std::size_t> chunks = chunks_of(5 * kMiB, {.first = 1 * kMiB, .largest = 2 * kMiB});
  for (std::size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_GE(chunks[i], 1 * kMiB);
}

}  // namespace
}  // namespace penstock::testing
