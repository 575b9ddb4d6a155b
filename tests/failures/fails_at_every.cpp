#include "failures/fails_at_every.hpp"

#include "support/other_process.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace penstock::testing {

namespace {

constexpr unsigned kPatience = 300;  ///< seconds for one call
constexpr int kMostProblems = 5;

/// What the other process says: before each call, and after it if something was wrong.
struct Report {
  int kind = 0;  ///< of Call; behind the last one: there are no more
  long nth = 0;
  std::array<char, 600> problem{};
};

/// The system's error for a call that failed, as text.
bool names_system_error(const std::string& text) {
  return text.find(std::strerror(ENOBUFS)) != std::string::npos ||
         text.find(std::strerror(EAGAIN)) != std::string::npos;
}

bool is_explained(const std::exception& error, Call kind, const std::string& failed) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kind == Call::memory;
  if (dynamic_cast<const Error*>(&error) == nullptr) return false;
  const std::string text = error.what();
  if (kind == Call::driver) return text.find(failed) != std::string::npos;
  if (kind == Call::map && dynamic_cast<const OutOfMemory*>(&error) != nullptr) return true;
  return kind == Call::memory ? !text.empty() : names_system_error(text);
}

/// Waits for threads that are about to end. True once the process holds the same again.
bool comes_to(const Holdings& expected, std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (holdings() != expected) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

class Tries {
 public:
  explicit Tries(const Scenario& scenario) : scenario_(scenario) {
    static_cast<void>(holdings());  // resets the fake driver, once
    // What is made once and kept: tables, a thread's own buffers.
    for (int i = 0; i < 3; ++i) expected_ = scenario_.prepare()();
    settle();
  }

  /// False if the work makes fewer calls. A sentence in `problem` if something is wrong.
  bool attempt(Call kind, long nth, std::string& problem) {
    problem.clear();
    bool failed = false;
    // A cache grows once, a leak every time.
    for (int time = 0; time < 3; ++time) {
      failed = attempt_once(kind, nth, problem);
      if (!problem.empty() || comes_to(held_, std::chrono::milliseconds(time == 0 ? 200 : 3000)))
        return failed;
      const Holdings before = held_;
      settle();
      if (time == 2) problem = fmt::format("held before: {}; after: {}", before.text(), held_.text());
    }
    return failed;
  }

 private:
  bool attempt_once(Call kind, long nth, std::string& problem) {
    const Scenario::Work work = scenario_.prepare();
    std::string failed;
    {
      const FailingCall failing(kind, nth);
      try {
        if (work() != expected_) problem = "the failure was not noticed, and wrong bytes arrived";
      } catch (const std::exception& error) {
        if (!is_explained(error, kind, failing.failed())) {
          problem = fmt::format("{} failed, and the error is not clear: {}", failing.failed(), error.what());
        }
      }
      failed = failing.failed();
    }
    try {
      if (work() != expected_) problem = failed + " failed, and then wrong bytes arrived";
    } catch (const std::exception& error) {
      problem = fmt::format("{} failed, and then it does not work: {}", failed, error.what());
    }
    return !failed.empty();
  }

  /// Takes what the process holds now as the right figures, once no thread is about to end.
  void settle() {
    Holdings now = holdings();
    do {
      held_ = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      now = holdings();
    } while (now != held_);
  }

  const Scenario& scenario_;
  std::vector<std::byte> expected_;
  Holdings held_;
};

long next_after(long nth) {
  return std::getenv("PENSTOCK_EVERY_CALL") != nullptr ? nth + 1 : nth + std::max(1L, nth / 10);
}

}  // namespace

void fails_at_every(const Scenario& scenario) {
  Report last{.kind = static_cast<int>(scenario.first), .nth = 1};
  for (int problems = 0; problems < kMostProblems; ++problems) {
    OtherProcess other("OtherProcessBody.DISABLED_Tries",
                       fmt::format("{} {} {}", scenario.name, last.kind, last.nth));
    const auto fail = [&](const char* problem) {
      ADD_FAILURE() << scenario.name << ", " << kCallNames[last.kind] << " call " << last.nth << ": "
                    << problem;
    };
    try {
      for (;;) {
        last = other.receive<Report>();
        if (last.kind > static_cast<int>(Call::last)) return;
        if (last.problem[0] != '\0') fail(last.problem.data());
      }
    } catch (const std::runtime_error&) {
      fail("the process crashed or hung");
      last.nth = next_after(last.nth);
    }
  }
}

TEST(OtherProcessBody, DISABLED_Tries) {
  const Talk talk = OtherProcess::starter();
  std::istringstream words(OtherProcess::argument());
  std::string name;
  Report report;
  words >> name >> report.kind >> report.nth;
  alarm(kPatience);
  Tries tries(*std::ranges::find(scenarios(), name, &Scenario::name));
  int problems = 0;
  while (report.kind <= static_cast<int>(Call::last)) {
    report.problem = {};
    talk.send(report);
    alarm(kPatience);
    std::string problem;
    const bool more = tries.attempt(static_cast<Call>(report.kind), report.nth, problem);
    if (!problem.empty()) {
      problem.resize(std::min(problem.size(), report.problem.size() - 1));
      std::ranges::copy(problem, report.problem.begin());
      talk.send(report);
    }
    const bool enough = !problem.empty() && ++problems % kMostProblems == 0;
    if (more && !enough) {
      report.nth = next_after(report.nth);
    } else {
      ++report.kind;
      report.nth = 1;
    }
  }
  report.problem = {};
  talk.send(report);
}

}  // namespace penstock::testing
