#include "core/shared/start_thread.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/memory/share_pages.hpp>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace penstock {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr std::chrono::seconds kRefusedPatience{20};
// The sockets of a process that is killed are closed before it has ended.
constexpr std::chrono::seconds kEndPatience{2};
constexpr unsigned kMostTurnedAway = 3;
constexpr std::size_t kLongestKey = std::size_t{64} << 10;
constexpr timeval kPeerPatience{.tv_sec = 2, .tv_usec = 0};
constexpr std::size_t kLongestText = std::size_t{1} << 28;  // a request or a note

class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  void reset() noexcept { *this = Descriptor(); }

 private:
  int number_;
};

enum class Answer : std::uint64_t {
  pages,       ///< a descriptor comes with it, and the text is their note
  failure,     ///< the text says why there are none
  come_again,  ///< the meeting has ended: the next one to come makes pages anew
};

/// Goes ahead of each text. Both sides run the same version, or they find that the magic number differs.
struct Head {
  static constexpr std::uint64_t kMagic = 0x3230'4b43'4f54'5350;
  std::uint64_t magic = kMagic;
  Answer answer = Answer::pages;
  std::uint64_t text_bytes = 0;
};

[[noreturn]] void refuse_meeting(const char* call) {
  throw Unsupported(fmt::format("sharing memory between processes: {}: {}", call, std::strerror(errno)));
}

struct MeetingPlace {
  sockaddr_un address{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

/// An abstract name, which goes with its socket: a null byte, then a name of this user and key.
MeetingPlace meeting_place(const std::string& key) {
  const std::string name = fmt::format("penstock-{}-{:016x}", geteuid(),
                                       static_cast<std::uint64_t>(std::hash<std::string>{}(key)));
  MeetingPlace place;
  place.address.sun_family = AF_UNIX;
  std::memcpy(place.address.sun_path + 1, name.data(), name.size());
  place.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return place;
}

Descriptor make_socket() {
  Descriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) refuse_meeting("socket");
  return made;
}

ucred peer_of(const Descriptor& socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) refuse_meeting("getsockopt");
  return peer;
}

/// The PID namespace of a process; 0 if it cannot be told.
ino_t pid_namespace(pid_t process) {
  struct stat status{};
  return stat(fmt::format("/proc/{}/ns/pid", process).c_str(), &status) == 0 ? status.st_ino : 0;
}

/// True for a process of this user and of this container. Containers that share the host's network have one
/// set of abstract names: there, any of them may take a name first.
bool is_trusted(const ucred& peer) {
  return peer.uid == geteuid() && peer.pid != 0 && pid_namespace(peer.pid) == pid_namespace(getpid());
}

/// Sends all bytes, and a descriptor with the first of them if it is not negative. False if the peer is gone
/// or does not read.
bool send_all(const Descriptor& socket, std::span<const std::byte> bytes, int file = -1) noexcept {
  while (!bytes.empty()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    if (file >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &file, sizeof file);
    }
    const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    file = -1;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

/// Fills `bytes`. Takes a descriptor that comes with them into `file`. False if the peer is gone or silent.
bool receive_all(const Descriptor& socket, std::span<std::byte> bytes, Descriptor* file = nullptr) noexcept {
  while (!bytes.empty()) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      int number = -1;
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      std::memcpy(&number, CMSG_DATA(header), sizeof number);
      Descriptor came(number);
      if (file != nullptr) *file = std::move(came);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(received));
  }
  return true;
}

bool send_text(const Descriptor& socket, Answer answer, std::string_view text, int file = -1) noexcept {
  const Head head{.answer = answer, .text_bytes = text.size()};
  return send_all(socket, std::as_bytes(std::span(&head, 1)), file) &&
         send_all(socket, std::as_bytes(std::span(text)));
}

struct Received {
  std::string text;
  Answer answer = Answer::pages;
  Descriptor file;
};

std::optional<Received> receive_text(const Descriptor& socket) {
  Head head;
  Received received;
  if (!receive_all(socket, std::as_writable_bytes(std::span(&head, 1)), &received.file)) return {};
  if (head.magic != Head::kMagic || head.text_bytes > kLongestText) {
    throw Error("The processes that share memory run different versions of penstock: install one in all.");
  }
  received.answer = head.answer;
  received.text.resize(static_cast<std::size_t>(head.text_bytes));
  if (!receive_all(socket, std::as_writable_bytes(std::span(received.text)))) return {};
  return received;
}

/// What is said to those who come.
struct Reply {
  Answer answer = Answer::pages;
  std::string_view text;
  int file = -1;
};

/// Answers the next process that waits. Nullopt if none can be accepted; false if it was not served.
std::optional<bool> answer_one(const Descriptor& listening, const std::string& key,
                               const Reply& reply) noexcept {
  const Descriptor guest(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (guest.get() < 0) return {};
  setsockopt(guest.get(), SOL_SOCKET, SO_RCVTIMEO, &kPeerPatience, sizeof kPeerPatience);
  setsockopt(guest.get(), SOL_SOCKET, SO_SNDTIMEO, &kPeerPatience, sizeof kPeerPatience);
  try {
    if (!is_trusted(peer_of(guest))) return false;
    const auto request = receive_text(guest);
    if (!request) return false;
    if (request->text == key) return send_text(guest, reply.answer, reply.text, reply.file);
    static_cast<void>(send_text(guest, Answer::failure, "another key has the same name: choose another"));
  } catch (const std::exception&) {  // a process of another version, which says so itself; or no memory
  }
  return false;
}

/// Lets nobody wait in vain: whoever is there gets `reply`, and whoever comes later finds no socket.
void end_meeting(Descriptor& listening, const std::string& key, const Reply& reply) {
  shutdown(listening.get(), SHUT_RDWR);
  while (answer_one(listening, key, reply)) {
  }
  listening.reset();
}

}  // namespace

/// A thread that gives pages to those who come, until all have come or the server goes.
class PageServer {
 public:
  PageServer(Descriptor listening, std::string key, MadePages made, std::size_t guests)
      : listening_(std::move(listening)), key_(std::move(key)), made_(std::move(made)), guests_(guests) {
    stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
    if (stop_.get() < 0) refuse_meeting("eventfd");
    thread_ = start_thread("penstock-share", [this] { serve(); });
  }
  ~PageServer() {
    if (generation_ != fork_generation()) {
      // The thread belongs to the parent: it cannot be joined here.
      static_cast<void>(new std::thread(std::move(thread_)));
      return;
    }
    const std::uint64_t one = 1;
    while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

 private:
  void serve() {
    const Reply reply{Answer::pages, made_.note, made_.pages->file()};
    std::array<pollfd, 2> events{pollfd{listening_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    while (guests_ > 0) {
      if (poll(events.data(), events.size(), -1) < 0) continue;
      if (events[1].revents != 0) break;
      const std::optional<bool> served = answer_one(listening_, key_, reply);
      if (served.value_or(false)) --guests_;
      if (served) continue;
      if (errno == EINVAL) break;  // a child that make() forked has shut it down
      poll(&events[1], 1, static_cast<int>(kBetweenLooks.count()));  // for a descriptor to be free
    }
    end_meeting(listening_, key_, Reply{Answer::come_again, {}, -1});
  }

  Descriptor listening_;
  Descriptor stop_;
  const std::string key_;
  const MadePages made_;
  std::size_t guests_;
  const std::uint64_t generation_ = fork_generation();
  std::thread thread_;
};

namespace {

CommonPages make_and_serve(Descriptor listening, const ShareOptions& options, FunctionRef<MadePages()> make) {
  MadePages made;
  const std::uint64_t generation = fork_generation();
  try {
    made = make();
  } catch (const std::exception& error) {
    if (generation != fork_generation()) throw;  // in a child: the parent goes on
    end_meeting(listening, options.key, Reply{Answer::failure, error.what(), -1});
    throw;
  }
  CommonPages common{{made}, true};
  common.server =
      std::make_shared<PageServer>(std::move(listening), options.key, std::move(made), options.processes - 1);
  return common;
}

/// The process that makes the pages, for those that wait for it. Its socket may outlive it, in a child that
/// it has forked.
class Maker {
 public:
  explicit Maker(const Descriptor& socket) : peer_(peer_of(socket)) {
    process_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer_.pid, 0)));
    is_unknown_ = process_.get() < 0 && errno != ESRCH;
    if (!is_trusted(peer_) && !ends_within({})) {
      throw Unsupported(
          "sharing memory between processes: a process of another user or container has the name of this "
          "key. Take "
          "another key, such as a random text that only the processes of this job have.");
    }
  }
  [[nodiscard]] pid_t pid() const noexcept { return peer_.pid; }
  /// Can be read once the process has ended; -1 if it is not known.
  [[nodiscard]] int process() const noexcept { return process_.get(); }
  /// Waits so long for its end.
  [[nodiscard]] bool ends_within(std::chrono::milliseconds time) const noexcept {
    pollfd end{process_.get(), POLLIN, 0};
    return !is_unknown_ && (process_.get() < 0 || poll(&end, 1, static_cast<int>(time.count())) > 0);
  }

 private:
  ucred peer_;
  Descriptor process_;
  bool is_unknown_ = false;
};

/// Waits until `maker` answers. Nullopt if it lives and does not: it has served all that it was told of, or
/// it has not waited for this process.
std::optional<CommonPages> receive_pages(const Descriptor& socket, const Maker& maker,
                                         const ShareOptions& options) {
  std::array<pollfd, 2> events{pollfd{socket.get(), POLLIN, 0}, pollfd{maker.process(), POLLIN, 0}};
  bool answered = false;
  if (send_text(socket, Answer::pages, options.key)) {
    while (poll(events.data(), events.size(), static_cast<int>(kBetweenLooks.count())) <= 0) {
      if (options.while_waiting) options.while_waiting();
    }
    answered = events[0].revents != 0;  // also by a process that has ended since
  }
  auto received = answered ? receive_text(socket) : std::nullopt;
  if (!received && !maker.ends_within(kEndPatience)) return {};
  if (!received) {
    throw Error(
        fmt::format("The process that makes the shared data (PID {}) ended before it was done. Its own error "
                    "says why.",
                    maker.pid()));
  }
  if (received->answer == Answer::come_again) return {};
  if (received->answer == Answer::failure) {
    throw Error(fmt::format("The process that makes the shared data (PID {}) failed: {}", maker.pid(),
                            received->text));
  }
  if (received->file.get() < 0) refuse_meeting("recvmsg brought no descriptor");
  auto pages = std::make_shared<const SharedPages>(SharedPages::attach(received->file.get()));
  return CommonPages{{std::move(pages), std::move(received->text)}};
}

}  // namespace

CommonPages share_pages(const ShareOptions& options, FunctionRef<MadePages()> make) {
  if (options.key.empty()) throw InvalidArgument("shared data needs a key; this one is empty");
  if (options.key.size() > kLongestKey) {
    throw InvalidArgument(
        fmt::format("a key of {} bytes was given; use at most {}", options.key.size(), kLongestKey));
  }
  if (options.processes == 0) throw InvalidArgument("0 processes cannot share memory; use 1 or more");
  if (options.processes == 1) return {{make()}, true};
  const MeetingPlace place = meeting_place(options.key);
  using Clock = std::chrono::steady_clock;
  auto refused_since = Clock::now();
  unsigned turned_away = 0;
  for (;;) {
    Descriptor socket = make_socket();
    if (bind(socket.get(), place.get(), place.bytes) == 0) {
      if (listen(socket.get(), SOMAXCONN) != 0) refuse_meeting("listen");
      return make_and_serve(std::move(socket), options, make);
    }
    if (errno != EADDRINUSE) refuse_meeting("bind");
    if (connect(socket.get(), place.get(), place.bytes) == 0) {
      const Maker maker(socket);
      if (!maker.ends_within({})) {
        if (auto received = receive_pages(socket, maker, options)) return std::move(*received);
        if (++turned_away == kMostTurnedAway) {
          throw Unsupported(fmt::format(
              "The process that makes the shared data (PID {}) has turned this one away {} times. "
              "If both have "
              "the same version of penstock, more processes share it than were announced.",
              maker.pid(), turned_away));
        }
        refused_since = Clock::now();
      } else {
        // A child that it has forked has the socket. Each connection takes room in its queue until it goes:
        // others would wait for room, so this one stays.
        pollfd hung_up{socket.get(), POLLIN, 0};
        while (poll(&hung_up, 1, static_cast<int>(kBetweenLooks.count())) <= 0 &&
               Clock::now() - refused_since <= kRefusedPatience) {
          if (options.while_waiting) options.while_waiting();
        }
      }
    } else if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) {
      refuse_meeting("connect");
    }
    // The first process does not listen yet, or not any more.
    if (Clock::now() - refused_since > kRefusedPatience) {
      throw Unsupported(fmt::format(
          "The data shared as '{}' cannot be made: a process that an earlier run has forked still holds the "
          "socket @{} of that key. End it, or take another key.",
          options.key, place.address.sun_path + 1));
    }
    if (options.while_waiting) options.while_waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace penstock
