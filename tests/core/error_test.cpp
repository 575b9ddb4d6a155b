#include <penstock/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(ErrorTest, RemembersWhereItWasThrown) {
  try {
    throw InvalidArgument("a sentence");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a sentence");
    EXPECT_THAT(error.where().file_name(), HasSubstr("error_test.cpp"));
  }
}

TEST(ErrorTest, OutOfMemorySaysAllFigures) {
  const OutOfMemory error("pinned pool", 4096, 1024, 512, "Raise the budget.");
  EXPECT_EQ(error.asked(), 4096u);
  EXPECT_EQ(error.used(), 1024u);
  EXPECT_EQ(error.free(), 512u);
  EXPECT_STREQ(error.what(),
               "pinned pool cannot give 4 KiB: 1 KiB are used and 512 B are free. Raise the budget.");
}

TEST(ErrorTest, OutOfMemorySaysNoFiguresThatAreNotKnown) {
  EXPECT_STREQ(OutOfMemory("host memory", 4096, 0, 0, "Free some.").what(),
               "host memory cannot give 4 KiB. Free some.");
}

TEST(ErrorTest, DeviceErrorNamesCallAndCode) {
  const DeviceError error("CUDA_ERROR_UNKNOWN", "cuInit", 999, "");
  EXPECT_EQ(error.name(), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(error.call(), "cuInit");
  EXPECT_EQ(error.code(), 999);
  EXPECT_STREQ(error.what(), "cuInit failed with CUDA_ERROR_UNKNOWN (999).");
  EXPECT_STREQ(DeviceError("CUDA_ERROR_UNKNOWN", "cuInit", 999, "Reboot.").what(),
               "Reboot. (cuInit failed with CUDA_ERROR_UNKNOWN, 999)");
}

}  // namespace
}  // namespace penstock
