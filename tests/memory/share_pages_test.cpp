#include "support/fork.hpp"
#include "support/threads.hpp"

#include <penstock/core/error.hpp>
#include <penstock/memory/share_pages.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::Background;
using testing::Child;
using ::testing::HasSubstr;
using testing::Hold;
using testing::succeeds_in_child;

constexpr std::size_t kBytes = 100'000;

/// A key of this test process alone.
std::string key_of(const char* test) { return std::string(test) + " " + std::to_string(getpid()); }

MadePages pages_of(std::size_t bytes, int value, std::string note = "what is in them") {
  auto pages = std::make_shared<const SharedPages>(bytes);
  std::memset(pages->bytes().data(), value, bytes);
  return {std::move(pages), std::move(note)};
}

bool hold(const MadePages& made, int value) {
  const auto bytes = made.pages->bytes();
  return bytes.size() == kBytes &&
         std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte(value); });
}

MadePages never() { throw InvalidArgument("this one does not make them"); }

std::size_t open_files() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                std::filesystem::directory_iterator()));
}

/// The name of the socket at which the processes of this key meet.
std::string socket_name(const std::string& key) {
  std::ostringstream name;
  name << "penstock-" << geteuid() << '-' << std::hex << std::setw(16) << std::setfill('0')
       << std::hash<std::string>{}(key);
  return name.str();
}

/// The socket of the key, if there is one, and the connections that it has.
std::size_t sockets_of(const std::string& key) {
  std::ifstream sockets("/proc/net/unix");
  const std::string wanted = "@" + socket_name(key);
  std::size_t count = 0;
  for (std::string line; std::getline(sockets, line);) count += line.ends_with(wanted) ? 1 : 0;
  return count;
}

bool is_in_use(const std::string& key) { return sockets_of(key) > 0; }

/// Something that is no process of penstock, or one of another user, at the socket of a key.
class Stranger {
 public:
  explicit Stranger(const std::string& key) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string name = socket_name(key);
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  ~Stranger() { close(socket_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  [[nodiscard]] bool listens() const { return bind(socket_, get(), bytes_) == 0 && listen(socket_, 5) == 0; }
  void hangs_up_until(const std::atomic<bool>& over) const {
    while (!over) {
      pollfd somebody{socket_, POLLIN, 0};
      if (poll(&somebody, 1, 10) > 0) close(accept(socket_, nullptr, nullptr));
    }
  }
  [[nodiscard]] bool comes() const { return connect(socket_, get(), bytes_) == 0; }
  /// The other side may have hung up by then.
  void says(const std::string& words) const {
    static_cast<void>(send(socket_, words.data(), words.size(), MSG_NOSIGNAL));
  }
  /// As a process says it that wants the pages of `key`.
  void asks(const std::string& key, std::uint64_t key_bytes,
            std::uint64_t magic = 0x3230'4b43'4f54'5350) const {
    const std::array<std::uint64_t, 3> head{magic, 0, key_bytes};
    says(std::string(reinterpret_cast<const char*>(head.data()), sizeof head) + key);
  }
  /// True once the other side has hung up without a word.
  [[nodiscard]] bool hears_nothing() const {
    std::array<char, 64> answer{};
    return recv(socket_, answer.data(), answer.size(), 0) <= 0;
  }

 private:
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }

  int socket_;
  sockaddr_un address_{};
  socklen_t bytes_ = 0;
};

TEST(SharedPagesTest, ProcessesSeeTheSameBytesAndNothingStaysOpen) {
  const std::size_t before = open_files();
  {
    const SharedPages pages(kBytes);
    EXPECT_EQ(pages.bytes().size(), kBytes);
    EXPECT_TRUE(std::ranges::all_of(pages.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_TRUE(succeeds_in_child([&] {
      const SharedPages theirs = SharedPages::attach(pages.file());
      std::memset(theirs.bytes().data(), 3, kBytes);
      return theirs.bytes().size() == kBytes;
    }));
    EXPECT_EQ(pages.bytes()[kBytes - 1], std::byte{3});
  }
  EXPECT_EQ(open_files(), before);
}

TEST(SharedPagesTest, NobodyCutsThemShort) {
  const SharedPages pages(kBytes);
  EXPECT_NE(ftruncate(pages.file(), 10), 0);
  EXPECT_NE(ftruncate(pages.file(), 10 * kBytes), 0);
}

TEST(SharedPagesTest, WhatIsNotMemoryIsRefused) {
  EXPECT_THROW(SharedPages(0), InvalidArgument);
  EXPECT_THROW(static_cast<void>(SharedPages::attach(-1)), InvalidArgument);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_THROW(static_cast<void>(SharedPages::attach(ends[0])), InvalidArgument);
  close(ends[0]);
  close(ends[1]);
}

TEST(SharePagesTest, OneProcessMakesThemAndAllHaveThem) {
  constexpr std::size_t kProcesses = 4;
  const SharedPages counters(sizeof(std::array<std::atomic<std::size_t>, 2>));
  auto& [makers, owners] = *new (counters.bytes().data()) std::array<std::atomic<std::size_t>, 2>{};
  const ShareOptions options{.key = key_of("all"), .processes = kProcesses};
  const auto comes = [&] {
    const CommonPages common = share_pages(options, [&] {
      ++makers;
      return pages_of(kBytes, 7);
    });
    ++owners;
    while (owners < kProcesses) std::this_thread::yield();  // whoever makes them serves the others
    return hold(common, 7) && common.note == "what is in them";
  };
  std::array<std::optional<Child>, kProcesses - 1> others;
  for (auto& other : others) other.emplace(comes);
  EXPECT_TRUE(comes());
  for (auto& other : others) EXPECT_TRUE(other->end());
  EXPECT_EQ(makers, 1U);
}

TEST(SharePagesTest, TheOthersWaitUntilTheyAreMade) {
  const ShareOptions options{.key = key_of("wait"), .processes = 2};
  Hold making;
  std::optional<CommonPages> first;
  Background maker([&] {
    first = share_pages(options, [&] {
      making.stay();
      return pages_of(kBytes, 1);
    });
  });
  making.wait_for(1);
  std::optional<CommonPages> second;
  std::atomic<int> looks{0};
  Background guest([&] {
    second = share_pages({.key = options.key, .processes = 2, .while_waiting = [&] { ++looks; }}, &never);
  });
  while (looks < 2) std::this_thread::yield();
  EXPECT_FALSE(guest.ended());
  making.let_go();
  maker.join();
  guest.join();
  EXPECT_TRUE(hold(*second, 1));
  EXPECT_TRUE(first->made_here);
  EXPECT_FALSE(second->made_here);
  first->pages->bytes()[5] = std::byte{9};
  EXPECT_EQ(second->pages->bytes()[5], std::byte{9});
  first.reset();
  EXPECT_EQ(second->pages->bytes()[5], std::byte{9}) << "the last one keeps the memory";
}

TEST(SharePagesTest, AFailureReachesAllWhoWait) {
  const ShareOptions options{.key = key_of("failure"), .processes = 3};
  Hold making;
  Background maker([&] {
    EXPECT_THROW(static_cast<void>(share_pages(options,
                                               [&]() -> MadePages {
                                                 making.stay();
                                                 throw Error("the disk is full");
                                               })),
                 Error);
  });
  making.wait_for(1);
  std::array<std::string, 2> errors;
  std::atomic<int> waiting{0};
  std::array<std::optional<Background>, 2> guests;
  for (std::size_t i = 0; i < 2; ++i) {
    guests[i].emplace([&, i] {
      std::atomic<bool> waits{false};
      const auto looks = [&] {
        if (!waits.exchange(true)) ++waiting;
      };
      try {
        static_cast<void>(share_pages({.key = options.key, .processes = 3, .while_waiting = looks}, &never));
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  while (waiting < 2) std::this_thread::yield();
  making.let_go();
  maker.join();
  for (auto& guest : guests) guest->join();
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("the disk is full"));
    EXPECT_THAT(error, HasSubstr(std::to_string(getpid())));
  }
}

void expect_error_when_killed(bool forks) {
  const ShareOptions options{.key = key_of(forks ? "killed with a child" : "killed"), .processes = 2};
  const SharedPages counters(sizeof(std::atomic<pid_t>));
  auto& child = *new (counters.bytes().data()) std::atomic<pid_t>(0);
  Child maker([&] {
    static_cast<void>(share_pages(options, [&]() -> MadePages {
      const pid_t forked = forks ? fork() : 1;
      if (forked > 0) child = forked;
      for (;;) pause();
    }));
    return true;
  });
  while (child == 0) std::this_thread::yield();
  std::atomic<bool> waits{false};
  std::string error;
  Background guest([&] {
    try {
      static_cast<void>(
          share_pages({.key = options.key, .processes = 2, .while_waiting = [&] { waits = true; }}, &never));
    } catch (const Error& caught) {
      error = caught.what();
    }
  });
  while (!waits) std::this_thread::yield();
  const std::string pid = std::to_string(maker.pid());
  maker.end(SIGKILL);
  guest.join();
  EXPECT_THAT(error, HasSubstr("PID " + pid));
  EXPECT_THAT(error, HasSubstr("ended before it was done"));
  if (forks) kill(child, SIGKILL);
}

TEST(SharePagesTest, AMakerThatIsKilledIsAnError) { expect_error_when_killed(false); }

TEST(SharePagesTest, AMakerThatWasKilledBeforeIsNotWaitedFor) {
  const ShareOptions options{.key = key_of("killed before"), .processes = 2};
  const SharedPages counters(sizeof(std::atomic<pid_t>));
  auto& child = *new (counters.bytes().data()) std::atomic<pid_t>(0);
  Child maker([&] {
    static_cast<void>(share_pages(options, [&]() -> MadePages {
      const pid_t forked = fork();
      if (forked > 0) child = forked;
      for (;;) pause();
    }));
    return true;
  });
  while (child == 0) std::this_thread::yield();
  maker.end(SIGKILL);
  ASSERT_TRUE(is_in_use(options.key)) << "the child has the socket";
  std::atomic<int> looks{0};
  std::optional<CommonPages> made;
  Background guest([&] {
    made = share_pages({.key = options.key, .processes = 2, .while_waiting = [&] { ++looks; }},
                       [] { return pages_of(kBytes, 5); });
  });
  while (looks < 5) std::this_thread::yield();
  EXPECT_EQ(sockets_of(options.key), 2U) << "the queue of the child's socket does not fill";
  kill(child, SIGKILL);
  guest.join();
  EXPECT_TRUE(hold(*made, 5)) << "the name is free once the child has ended";
}

TEST(SharePagesTest, AProcessThatWasHungUpOnComesAgain) {
  const ShareOptions options{.key = key_of("hung up on"), .processes = 2};
  std::optional<Stranger> rude(options.key);
  ASSERT_TRUE(rude->listens());
  std::optional<CommonPages> made;
  std::atomic<bool> waits{false};
  Background guest([&] {
    made = share_pages({.key = options.key, .processes = 2, .while_waiting = [&] { waits = true; }},
                       [] { return pages_of(kBytes, 5); });
  });
  while (!waits) std::this_thread::yield();
  rude.reset();
  guest.join();
  EXPECT_TRUE(hold(*made, 5));
}

// As a maker of another version does, which does not understand the request.
TEST(SharePagesTest, AProcessThatIsHungUpOnAgainAndAgainGivesUp) {
  const ShareOptions options{.key = key_of("again and again"), .processes = 2};
  const Stranger rude(options.key);
  ASSERT_TRUE(rude.listens());
  std::atomic<bool> over{false};
  Background hanging_up([&] { rude.hangs_up_until(over); });
  EXPECT_THROW(static_cast<void>(share_pages(options, &never)), Unsupported);
  over = true;
  hanging_up.join();
}

TEST(SharePagesTest, AChildThatMakeForkedMayFail) {
  const ShareOptions options{.key = key_of("child fails"), .processes = 2};
  bool in_child = false;
  std::optional<CommonPages> made;
  try {
    made = share_pages(options, [&] {
      const pid_t child = fork();
      in_child = child == 0;
      if (in_child) throw Error("the child fails");
      waitpid(child, nullptr, 0);
      return pages_of(kBytes, 6);
    });
  } catch (const Error&) {
    _exit(in_child ? 0 : 1);
  }
  EXPECT_TRUE(hold(share_pages(options, &never), 6));
}

// The child has the maker's socket, so that it stays open.
TEST(SharePagesTest, AMakerThatIsKilledIsAnErrorWhileItsChildLives) { expect_error_when_killed(true); }

TEST(SharePagesTest, WhoWaitsCanBeInterruptedAndTheOthersAreServed) {
  const ShareOptions options{.key = key_of("interrupted"), .processes = 2};
  Hold making;
  std::optional<CommonPages> first;
  Background maker([&] {
    first = share_pages(options, [&] {
      making.stay();
      return pages_of(kBytes, 2);
    });
  });
  making.wait_for(1);
  struct Interrupted {};
  EXPECT_THROW(
      static_cast<void>(share_pages(
          {.key = options.key, .processes = 2, .while_waiting = [] { throw Interrupted(); }}, &never)),
      Interrupted);
  making.let_go();
  EXPECT_TRUE(hold(share_pages(options, &never), 2));
  maker.join();
}

TEST(SharePagesTest, StrangersAreNotServedAndHoldUpNobody) {
  const ShareOptions options{.key = key_of("strangers"), .processes = 2};
  const CommonPages made = share_pages(options, [] { return pages_of(kBytes, 4); });
  const Stranger silent(options.key);
  const Stranger of_another_version(options.key);
  const Stranger lying(options.key);
  for (const Stranger* stranger : {&silent, &of_another_version, &lying}) ASSERT_TRUE(stranger->comes());
  of_another_version.asks(options.key, options.key.size(), 1);
  lying.asks(options.key, std::uint64_t{1} << 60);
  EXPECT_TRUE(hold(share_pages(options, &never), 4));
  for (const Stranger* stranger : {&silent, &of_another_version, &lying})
    EXPECT_TRUE(stranger->hears_nothing());
}

TEST(SharePagesTest, AnotherKeyOfTheSameNameGetsNoPages) {
  const ShareOptions options{.key = key_of("name"), .processes = 2};
  const CommonPages made = share_pages(options, [] { return pages_of(kBytes, 4); });
  const Stranger other(options.key);
  ASSERT_TRUE(other.comes());
  other.asks("another key", 11);
  EXPECT_FALSE(other.hears_nothing()) << "it is told why";
  EXPECT_TRUE(hold(share_pages(options, &never), 4)) << "and does not count";
}

bool become_another_user() { return setgid(65534) == 0 && setuid(65534) == 0; }

TEST(SharePagesTest, OtherUsersGetNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const ShareOptions options{.key = key_of("users"), .processes = 2};
  const CommonPages made = share_pages(options, [] { return pages_of(kBytes, 4); });
  const std::string name = socket_name(options.key);
  EXPECT_TRUE(succeeds_in_child([&] {
    const Stranger stranger(options.key);
    if (!become_another_user() || !stranger.comes()) return false;
    stranger.asks(options.key, options.key.size());
    return stranger.hears_nothing();
  }));
  EXPECT_TRUE(hold(share_pages(options, &never), 4));
}

TEST(SharePagesTest, NothingIsTakenFromOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const ShareOptions options{.key = key_of("taken"), .processes = 2};
  const Child squatter([&] {
    const Stranger stranger(options.key);
    if (!become_another_user() || !stranger.listens()) return false;
    for (;;) pause();
  });
  while (!is_in_use(options.key)) std::this_thread::yield();
  EXPECT_THROW(static_cast<void>(share_pages(options, &never)), Unsupported);
}

/// Runs `body` in a process of another PID namespace, as another container on the host's network is. False if
/// it cannot be made.
bool succeeds_in_another_container(auto&& body) {
  if (unshare(CLONE_NEWPID) != 0) return false;
  return succeeds_in_child([&] { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && body(); });
}

bool can_make_containers() {
  return succeeds_in_child([] { return succeeds_in_another_container([] { return true; }); });
}

TEST(SharePagesTest, OtherContainersGetNothing) {
  if (!can_make_containers()) GTEST_SKIP() << "PID namespaces are not allowed";
  const ShareOptions options{.key = key_of("containers"), .processes = 2};
  const CommonPages made = share_pages(options, [] { return pages_of(kBytes, 4); });
  EXPECT_TRUE(succeeds_in_child([&] {
    const Stranger stranger(options.key);
    return succeeds_in_another_container([&] {
      if (!stranger.comes()) return false;
      stranger.asks(options.key, options.key.size());
      return stranger.hears_nothing();
    });
  }));
  EXPECT_TRUE(hold(share_pages(options, &never), 4));
}

TEST(SharePagesTest, NothingIsTakenFromOtherContainers) {
  if (!can_make_containers()) GTEST_SKIP() << "PID namespaces are not allowed";
  const ShareOptions options{.key = key_of("squatter"), .processes = 2};
  const Child squatter([&] {
    return succeeds_in_another_container([&] {
      const auto served = share_pages(options, [] { return pages_of(kBytes, 6); });
      for (;;) pause();
      return true;
    });
  });
  while (!is_in_use(options.key)) std::this_thread::yield();
  EXPECT_THROW(static_cast<void>(share_pages(options, &never)), Unsupported);
}

TEST(SharePagesTest, AKeyIsFreeOnceAllHaveThePages) {
  const ShareOptions options{.key = key_of("again"), .processes = 2};
  std::vector<CommonPages> kept;
  for (const int value : {1, 2, 3}) {
    kept.push_back(share_pages(options, [&] { return pages_of(kBytes, value); }));
    kept.push_back(share_pages(options, &never));
    EXPECT_TRUE(hold(kept.back(), value));
    while (is_in_use(options.key)) std::this_thread::yield();
  }
}

TEST(SharePagesTest, AMakerThatGoesEarlyLeavesNothing) {
  const ShareOptions options{.key = key_of("early"), .processes = 2};
  const std::size_t before = open_files();
  {
    const CommonPages alone = share_pages(options, [] { return pages_of(kBytes, 1); });
    EXPECT_TRUE(is_in_use(options.key));
  }
  EXPECT_FALSE(is_in_use(options.key));
  EXPECT_EQ(open_files(), before);
}

TEST(SharePagesTest, AForkedChildDoesNotEndTheServer) {
  const ShareOptions options{.key = key_of("forked"), .processes = 2};
  auto made = std::make_unique<CommonPages>(share_pages(options, [] { return pages_of(kBytes, 6); }));
  EXPECT_TRUE(succeeds_in_child([&] {
    made.reset();
    return true;
  }));
  EXPECT_TRUE(hold(share_pages(options, &never), 6));
}

TEST(SharePagesTest, AProcessAloneMeetsNobody) {
  const ShareOptions options{.key = key_of("alone")};
  const CommonPages alone = share_pages(options, [] { return pages_of(kBytes, 8); });
  EXPECT_TRUE(hold(alone, 8));
  EXPECT_TRUE(alone.made_here);
  EXPECT_FALSE(is_in_use(options.key));
}

TEST(SharePagesTest, WhatHasNoMeaningIsRefused) {
  const auto make = [] { return pages_of(kBytes, 1); };
  EXPECT_THROW(static_cast<void>(share_pages({.key = ""}, make)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(share_pages({.key = std::string(65537, 'k')}, make)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(share_pages({.key = "none", .processes = 0}, make)), InvalidArgument);
}

}  // namespace
}  // namespace penstock
