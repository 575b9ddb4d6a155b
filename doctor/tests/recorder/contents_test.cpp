#include "doctor/recorder/contents.hpp"

#include "doctor/read/recording_format.hpp"
#include "doctor/recorder/careful_copy.hpp"
#include "doctor/recorder/cupti.hpp"
#include "doctor/tests/recorder/kernel_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace penstock::recorder {
namespace {

std::vector<char> random_bytes(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<char> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&random] { return static_cast<char>(random()); });
  return bytes;
}

TEST(Contents, HaveTheSameHashIfTheyAreTheSame) {
  const std::vector<char> bytes = random_bytes(1 << 20);
  std::vector<char> copy(bytes.size() + 3);
  std::copy(bytes.begin(), bytes.end(), copy.begin() + 3);  // elsewhere, and not aligned
  EXPECT_NE(hash_input(bytes.data(), bytes.size()), 0U);
  EXPECT_EQ(hash_input(copy.data() + 3, bytes.size()), hash_input(bytes.data(), bytes.size()));
  EXPECT_NE(hash_input(bytes.data(), bytes.size() - 1), hash_input(bytes.data(), bytes.size()))
      << "of another size";
  EXPECT_NE(hash_input(random_bytes(1 << 20, 2).data(), 1 << 20), hash_input(bytes.data(), bytes.size()));
}

TEST(Contents, AreSampledAtBothEndsAndBetween) {
  std::vector<char> bytes = random_bytes(1 << 20);
  const std::uint64_t before = hash_input(bytes.data(), bytes.size());
  std::size_t noticed = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 64) {
    bytes[i] = static_cast<char>(bytes[i] + 1);
    const bool differs = hash_input(bytes.data(), bytes.size()) != before;
    bytes[i] = static_cast<char>(bytes[i] - 1);
    noticed += differs ? 1 : 0;
    if (i == 0) {
      EXPECT_TRUE(differs);
    }
  }
  EXPECT_EQ(noticed, recording::kSampleBytes / 64);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  EXPECT_NE(hash_input(bytes.data(), bytes.size()), before);
}

TEST(Contents, OfOtherCopiesAreNotLookedAt) {
  const std::vector<char> bytes = random_bytes(1 << 20);
  EXPECT_EQ(hash_input(bytes.data(), recording::kSmallCopyBytes), 0U);
  EXPECT_NE(hash_input(bytes.data(), recording::kSmallCopyBytes + 1), 0U);
}

TEST(Contents, AreThoseOfCopiesToADevice) {
  EXPECT_EQ(input_call(kDriverDomain, "cuMemcpyHtoDAsync_v2_ptsz"), InputCall::yes);
  EXPECT_EQ(input_call(kDriverDomain, "cuMemcpyDtoH_v2"), InputCall::no);
  EXPECT_EQ(input_call(kDriverDomain, "cuMemcpy"), InputCall::no) << "it may be of managed memory";
  EXPECT_EQ(input_call(kRuntimeDomain, "cudaMemcpyAsync_v3020"), InputCall::as_told);
  EXPECT_EQ(input_call(kRuntimeDomain, "cudaMemcpy2D_v3020"), InputCall::no);
}

TEST(Contents, OfNearlyOneValueAreNotTold) {
  std::vector<char> bytes(1 << 20, 3);
  EXPECT_EQ(hash_input(bytes.data(), bytes.size()), 0U);
  bytes[0] = 4;
  EXPECT_EQ(hash_input(bytes.data(), bytes.size()), 0U);
  for (std::size_t i = 0; i < 128; i += 16) bytes[i] = 4;  // every second word of the first piece
  EXPECT_EQ(hash_input(bytes.data(), bytes.size()), 0U);
  bytes.back() = 4;
  EXPECT_NE(hash_input(bytes.data(), bytes.size()), 0U);
}

TEST(Contents, ThatCannotBeReadAreNotTold) {
  EXPECT_EQ(hash_input(nullptr, 1 << 20), 0U);
  EXPECT_EQ(hash_input(reinterpret_cast<const void*>(std::uintptr_t{0x7f0000000000}), 1 << 20), 0U);
  constexpr std::size_t kBytes = 1 << 20;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::vector<char> bytes = random_bytes(kBytes);
  std::memcpy(memory, bytes.data(), kBytes);
  EXPECT_NE(hash_input(memory, kBytes), 0U);
  ASSERT_EQ(::mprotect(static_cast<char*>(memory) + kBytes / 2, 65536, PROT_NONE), 0);
  EXPECT_EQ(hash_input(memory, kBytes), 0U) << "a part of it is locked away";
  ::munmap(memory, kBytes);
}

// Pinned memory may be mapped by the driver. process_vm_readv() is refused there, and a program reads it.
TEST(Contents, OfADriversMappingAreRead) {
  const std::uintptr_t pages = test::kernel_pages();
  if (pages == 0) GTEST_SKIP() << "this kernel maps none of its pages";
  char bytes[64];
  EXPECT_EQ(copy_carefully(reinterpret_cast<const void*>(pages), bytes), sizeof bytes);
}

}  // namespace
}  // namespace penstock::recorder
