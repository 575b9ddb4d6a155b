#include "doctor/recorder/streams.hpp"

#include "support/temp_directory.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace penstock::recorder {
namespace {

TEST(RecordedStreams, LeaveRoomForPlaces) {
  const test::TempDirectory folder;
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 1));
  Streams streams;
  for (std::uint32_t i = 0; i < Streams::kMost + 1000; ++i)
    streams.add(CuptiStreamRecord{kActivityStream, 1, i, 0, 1, 0}, file);
  EXPECT_EQ(file.header().text_bytes, Streams::kMost * (sizeof(recording::TextEntry) + 12));
}

TEST(RecordedStreams, NameTheDefaultStreamOfAContext) {
  const test::TempDirectory folder;
  static RecordingFile file;
  ASSERT_TRUE(file.open(folder.path().c_str(), 1));
  CuptiContextRecord context{};
  context.default_stream = 7;
  Streams::add(context, file);
  EXPECT_EQ(file.header().text_bytes, sizeof(recording::TextEntry) + 12);
}

}  // namespace
}  // namespace penstock::recorder
