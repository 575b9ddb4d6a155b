#include <penstock/core/log.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override { set_log_sink({}); }
};

TEST_F(Log, IsSilentWithoutASink) { log(LogLevel::warning, "nobody hears this"); }

TEST_F(Log, PassesLinesToTheSink) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  set_log_sink([&](LogLevel level, std::string_view line) { lines.emplace_back(level, line); });
  log(LogLevel::debug, "one");
  log(LogLevel::warning, "two");
  set_log_sink({});
  log(LogLevel::warning, "three");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], (std::pair{LogLevel::debug, std::string("one")}));
  EXPECT_EQ(lines[1], (std::pair{LogLevel::warning, std::string("two")}));
}

TEST_F(Log, SwallowsWhatTheSinkThrows) {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("full disk"); });
  log(LogLevel::warning, "still fine");
}

TEST_F(Log, CallsTheSinkOneAtATime) {
  int lines = 0;  // not atomic: the sink is never called twice at once
  set_log_sink([&](LogLevel, std::string_view) { ++lines; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log(LogLevel::info, "line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines, 2000);
}

}  // namespace
}  // namespace penstock
