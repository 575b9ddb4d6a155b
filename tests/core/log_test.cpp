#include <penstock/core/log.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_sink({}); }
};

TEST_F(Log, IsSilentWithoutASink) { log_warning("nobody hears this"); }

TEST_F(Log, PassesLinesToTheSink) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  log_warning("one");
  log_warning("two");
  set_log_sink({});
  log_warning("three");
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
}

TEST_F(Log, SwallowsWhatTheSinkThrows) {
  set_log_sink([](std::string_view) { throw std::runtime_error("full disk"); });
  log_warning("still fine");
}

TEST_F(Log, TakesAnotherSinkWhileThreadsLog) {
  std::atomic<int> lines{0};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) log_warning("line");
  });
  for (int i = 0; i < 200; ++i) {
    set_log_sink([&lines, much = std::vector<int>(100)](std::string_view) { lines += 1 + much.front(); });
  }
  while (lines == 0) std::this_thread::yield();
  stop = true;
  thread.join();
}

TEST_F(Log, CallsTheSinkOneAtATime) {
  int lines = 0;  // not atomic: the sink is never called twice at once
  set_log_sink([&](std::string_view) { ++lines; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log_warning("line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines, 2000);
}

}  // namespace
}  // namespace penstock
