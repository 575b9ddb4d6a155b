#include "memory/host_pages.hpp"
#include "memory/pinned_resource.hpp"
#include "support/faulty_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <vector>

namespace {

constexpr int kPopulateWrite = 23;
std::atomic<int> refused_with{0};
std::atomic<int> refusals{0};

}  // namespace

/// Replaces the C library's madvise: the next `refusals` requests for pages fail with `refused_with`.
extern "C" int madvise(void* data, std::size_t bytes, int advice) noexcept {
  if (advice == kPopulateWrite && refusals.fetch_sub(1) > 0) {
    errno = refused_with;
    return -1;
  }
  return static_cast<int>(syscall(SYS_madvise, data, bytes, advice));
}

namespace penstock {
namespace {

/// Tests the kernel's answers to requests for pages.
class TouchTest : public ::testing::Test {
 protected:
  void TearDown() override { refusals = 0; }

  static void refuse(int error, int times) {
    refused_with = error;
    refusals = times;
  }

  static void expect_all_present() {
    constexpr std::size_t kTouched = 64 * kKiB;
    HostWorkers workers({.threads = 1, .on_start = {}});
    void* const data = map_host_pages(kTouched);
    EXPECT_TRUE(touch_host_pages(data, kTouched, workers));
    std::vector<unsigned char> present(kTouched / page_bytes());
    ASSERT_EQ(mincore(data, kTouched, present.data()), 0);
    EXPECT_TRUE(std::ranges::all_of(present, [](unsigned char page) { return (page & 1) != 0; }));
    unmap_host_pages(data, kTouched);
  }
};

TEST_F(TouchTest, AnInterruptedRequestIsMadeAgain) {
  for (const int error : {EINTR, EAGAIN}) {
    refuse(error, 2);
    expect_all_present();
  }
}

TEST_F(TouchTest, AKernelThatDoesNotKnowTheRequestHasEachPageWritten) {
  refuse(EINVAL, 1);
  expect_all_present();
}

TEST_F(TouchTest, WithoutPagesLeftNothingIsLocked) {
  const auto backend = std::make_shared<testing::FaultyBackend>(Device::open("host").shared_backend());
  PinnedResource resource{Device(backend)};
  refuse(ENOMEM, 1);
  try {
    static_cast<void>(resource.allocate(kMiB, 256));
    FAIL() << "it was allocated";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), kMiB);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no pages left"));
  }
  EXPECT_EQ(backend->calls(testing::Entry::host_register), 0u);
}

}  // namespace
}  // namespace penstock
