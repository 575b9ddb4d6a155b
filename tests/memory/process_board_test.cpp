#include "support/comes_true.hpp"
#include "support/fork.hpp"

#include <penstock/core/error.hpp>
#include <penstock/memory/process_board.hpp>

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::succeeds_in_child;
using namespace std::chrono_literals;

/// The processes of a group that only this test has.
class ProcessBoardTest : public ::testing::Test {
 protected:
  [[nodiscard]] ProcessBoardOptions options(std::size_t rank, std::size_t processes,
                                            std::chrono::milliseconds timeout = 60s) const {
    return {.meeting = {.key = key_, .processes = processes}, .rank = rank, .timeout = timeout};
  }

 private:
  const std::string key_ = std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
                           " of " + std::to_string(getpid());
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string text_of(std::size_t rank, std::size_t round) {
  return std::string(rank * 1000 + round * 37 % 5000, static_cast<char>('a' + (rank + round) % 26));
}

TEST_F(ProcessBoardTest, AllGetTheTextsAndWordsOfAll) {
  constexpr std::size_t kRanks = 3;
  const auto take_part = [&](std::size_t rank) {
    ProcessBoard board(options(rank, kRanks));
    for (std::size_t round = 0; round < 200; ++round) {
      board.set(round % ProcessBoard::kWords, 1000 * rank + round);
      const std::vector<std::string> texts = board.exchange(text_of(rank, round));
      for (std::size_t other = 0; other < kRanks; ++other) {
        const std::uint64_t word = board.get(other, round % ProcessBoard::kWords);
        if (texts.at(other) != text_of(other, round) || word < 1000 * other + round) return false;
      }
      if (rank == round % kRanks) std::this_thread::sleep_for(100us);
    }
    static_cast<void>(board.exchange("all have seen all words"));
    return board.process(rank) == getpid();
  };
  Child second([&] { return take_part(1); });
  Child third([&] { return take_part(2); });
  EXPECT_TRUE(take_part(0));
  EXPECT_TRUE(second.end());
  EXPECT_TRUE(third.end());
}

TEST_F(ProcessBoardTest, TextsOfAnyLengthAreCompared) {
  const std::string text(50'000, 'x');
  std::string late = text;
  late.back() = 'y';
  std::string early = text;
  early[5000] = 'y';
  const auto said = [&](std::size_t rank, const std::string& others) {
    ProcessBoard board(options(rank, 3));
    board.agree(text);
    board.agree("short");
    return refusal([&] { board.agree(rank == 0 ? text : others); });
  };
  for (const std::string& others : {late, early}) {
    Child second([&] { return said(1, others).find("Rank 1: ...xxx") != std::string::npos; });
    Child third([&] { return said(2, others).find("Rank 1: ...xxx") != std::string::npos; });
    const std::string here = said(0, others);
    EXPECT_THAT(here, HasSubstr("Rank 0: ...xxx"));
    EXPECT_THAT(here, HasSubstr(others == early ? "xyx" : "(hash "));
    EXPECT_LT(here.size(), 2000);
    EXPECT_TRUE(second.end());
    EXPECT_TRUE(third.end());
  }
}

TEST_F(ProcessBoardTest, TextsAreCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "ä";
  const auto said = [&](std::size_t rank, std::size_t at) {
    std::string mine = "x" + text;
    if (rank == 1) mine.insert(at, "y");
    ProcessBoard board(options(rank, 2));
    return refusal([&] { board.agree(mine); });
  };
  const auto is_whole = [](const std::string& error) {
    std::size_t halves = 0;
    for (std::size_t i = 0; i < error.size(); ++i) {
      if (error[i] == "ä"[0]) halves += i + 1 < error.size() && error[i + 1] == "ä"[1] ? 0 : 1;
      if (error[i] == "ä"[1]) halves += i > 0 && error[i - 1] == "ä"[0] ? 0 : 1;
    }
    return !error.empty() && halves == 0;
  };
  for (const std::size_t at : {1UL, 1001UL, 39'999UL}) {
    Child other([&] { return is_whole(said(1, at)); });
    EXPECT_TRUE(is_whole(said(0, at)));
    EXPECT_TRUE(other.end());
  }
}

TEST_F(ProcessBoardTest, AKilledProcessIsNoticed) {
  Child other([&] {
    const ProcessBoard board(options(1, 2));
    pause();
    return true;
  });
  ProcessBoard board(options(0, 2));
  EXPECT_EQ(board.process(1), other.pid());
  EXPECT_FALSE(board.has_ended(1));
  EXPECT_FALSE(board.is_gone(1));
  EXPECT_EQ(board.trouble(1), "");
  std::thread killer([&] {
    std::this_thread::sleep_for(20ms);
    kill(other.pid(), SIGKILL);
  });
  EXPECT_THAT(refusal([&] { static_cast<void>(board.exchange("")); }),
              HasSubstr("(PID " + std::to_string(other.pid()) + ") has ended"));
  killer.join();
  EXPECT_TRUE(board.has_ended(1));
  EXPECT_TRUE(board.is_gone(1));
  EXPECT_FALSE(board.has_left(1));
  EXPECT_FALSE(board.has_ended(0)) << "a process does not see its own lock";
}

TEST_F(ProcessBoardTest, AProcessLeavesAndComplains) {
  Child other([&] {
    {
      ProcessBoard board(options(1, 2));
      board.complain("out of paper");
      static_cast<void>(board.exchange("1"));
      static_cast<void>(board.exchange("2"));
      board.complain("");
      static_cast<void>(board.exchange("3"));
      static_cast<void>(board.exchange("4"));
    }
    pause();
    return true;
  });
  ProcessBoard board(options(0, 2));
  static_cast<void>(board.exchange("1"));
  EXPECT_THAT(board.trouble(1), HasSubstr("failed: out of paper"));
  static_cast<void>(board.exchange("2"));
  static_cast<void>(board.exchange("3"));
  EXPECT_EQ(board.trouble(1), "");
  static_cast<void>(board.exchange("4"));
  EXPECT_THAT(refusal([&] { static_cast<void>(board.exchange("5")); }), HasSubstr("has left"));
  EXPECT_TRUE(board.has_left(1));
  EXPECT_TRUE(testing::comes_true([&] { return board.is_gone(1); }));
  EXPECT_FALSE(board.has_ended(1)) << "it has left before";
}

TEST_F(ProcessBoardTest, OneThatDoesNotComeOrFollowIsNotWaitedForForEver) {
  EXPECT_THAT(refusal([&] { ProcessBoard board(options(0, 2, 100ms)); }),
              HasSubstr("Rank 1 of the group has not come"));
  std::string said = "has not come";
  // On a busy machine the other one may come late itself.
  for (auto timeout = 100ms; timeout < 120s && said.find("has not come") != std::string::npos; timeout *= 4) {
    Child other([&] {
      const ProcessBoard board(options(1, 2));
      pause();
      return true;
    });
    said = refusal([&] {
      ProcessBoard board(options(0, 2, timeout));
      static_cast<void>(board.exchange(""));
    });
  }
  EXPECT_THAT(said, HasSubstr("Rank 1 of the group has not followed"));
}

TEST_F(ProcessBoardTest, TheLongestTimeoutIsLong) {
  Child other([&] {
    const ProcessBoard board(options(1, 2));
    pause();
    return true;
  });
  ProcessBoardOptions patient = options(0, 2, std::chrono::milliseconds::max());
  std::atomic<bool> waits{false};
  patient.meeting.while_waiting = [&] { waits = true; };
  ProcessBoard board(patient);
  waits = false;
  std::thread killer([&] {
    EXPECT_TRUE(testing::comes_true([&] { return waits.load(); }));
    kill(other.pid(), SIGKILL);
  });
  EXPECT_THAT(refusal([&] { static_cast<void>(board.exchange("")); }), HasSubstr("has ended"));
  killer.join();
}

TEST_F(ProcessBoardTest, RanksThatDoNotFitAreRefused) {
  EXPECT_THROW(ProcessBoard board(options(2, 2)), InvalidArgument);
  EXPECT_THROW(ProcessBoard board(options(0, 0)), InvalidArgument);
  // The third one has the rank of the second. On a busy machine they may miss each other.
  bool is_one_refused = false;
  for (auto timeout = 500ms; timeout < 120s && !is_one_refused; timeout *= 4) {
    const auto is_refused = [&] {
      return refusal([&] { ProcessBoard board(options(1, 3, timeout)); }).find("have rank 1") !=
             std::string::npos;
    };
    Child second(is_refused);
    Child third(is_refused);
    EXPECT_THROW(ProcessBoard board(options(0, 3, timeout)), Error);
    const bool is_second_refused = second.end();
    is_one_refused = is_second_refused != third.end();
  }
  EXPECT_TRUE(is_one_refused);
}

TEST_F(ProcessBoardTest, AnotherSizeIsRefused) {
  Child other([&] { return refusal([&] { ProcessBoard board(options(1, 3, 2s)); }) != "accepted"; });
  EXPECT_NE(refusal([&] { ProcessBoard board(options(0, 2, 2s)); }), "accepted");
  EXPECT_TRUE(other.end());
}

TEST_F(ProcessBoardTest, AGroupOfOneWaitsForNobody) {
  ProcessBoard board(options(0, 1));
  EXPECT_EQ(board.exchange("me"), std::vector<std::string>{"me"});
  EXPECT_THROW(static_cast<void>(board.exchange(std::string(ProcessBoard::kLongestText + 1, 'x'))),
               InvalidArgument);
  board.complain(std::string(ProcessBoard::kLongestText + 1, 'x'));
  EXPECT_THAT(board.trouble(0), HasSubstr("xxx"));
}

TEST_F(ProcessBoardTest, WaitingCanBeEnded) {
  ProcessBoardOptions impatient = options(0, 2);
  int asked = 0;
  impatient.meeting.while_waiting = [&] {
    if (++asked > 1) throw Closed("enough");
  };
  EXPECT_THROW(ProcessBoard board(impatient), Closed);
}

TEST_F(ProcessBoardTest, AForkedChildDoesNotLeaveForItsParent) {
  const auto board = std::make_unique<ProcessBoard>(options(0, 1));
  EXPECT_TRUE(succeeds_in_child([&] {
    board->leave();
    return true;
  }));
  EXPECT_FALSE(board->has_left(0));
  board->leave();
  EXPECT_TRUE(board->has_left(0));
}

TEST_F(ProcessBoardTest, AProcessMayLeaveAsSoonAsItHasExchanged) {
  for (int i = 0; i < 500; ++i) {
    Child other([&] {
      ProcessBoard board(options(1, 2));
      return board.exchange("there").size() == 2;
    });
    {
      ProcessBoard board(options(0, 2));
      EXPECT_EQ(board.exchange("here"), (std::vector<std::string>{"here", "there"}));
    }
    ASSERT_TRUE(other.end()) << i;
  }
}

TEST_F(ProcessBoardTest, LeavesNothingOpen) {
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = files();
  for (int i = 0; i < 3; ++i) {
    Child other([&] {
      ProcessBoard board(options(1, 2));
      return board.exchange("there").size() == 2;
    });
    {
      ProcessBoard board(options(0, 2));
      static_cast<void>(board.exchange("here"));
    }
    EXPECT_TRUE(other.end());
  }
  EXPECT_EQ(files(), before);
}

}  // namespace
}  // namespace penstock
