#pragma once

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace penstock::testing {

/// Holds threads until they are released. Later threads pass. The destructor waits for the threads inside.
class Hold {
 public:
  Hold() = default;
  ~Hold() {
    let_go();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ == 0; });
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void stay() {
    std::unique_lock lock(mutex_);
    ++came_;
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --inside_;
    changed_.notify_all();
  }
  /// Blocks until `threads` have come in all.
  void wait_for(unsigned threads) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return came_ >= threads; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned came_ = 0;
  unsigned inside_ = 0;
  bool open_ = false;
};

/// True if this thread of the process sleeps now.
inline bool is_asleep(pid_t thread) {
  std::string text;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'S';
}

/// As `ps -L` shows it.
inline std::string name_of(pid_t thread) {
  std::string name;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/comm"), name);
  return name;
}

/// The threads of this process. The kernel may leave some out while others end, so this looks until it sees
/// the same ones again.
inline std::set<pid_t> live_threads() {
  const auto look = [] {
    std::set<pid_t> threads;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      threads.insert(static_cast<pid_t>(std::stol(entry.path().filename())));
    }
    return threads;
  };
  std::set<pid_t> threads = look();
  for (std::set<pid_t> again = look(); again != threads; again = look()) threads = std::move(again);
  return threads;
}

/// The threads that were started since this object was made, whatever happens to older ones.
class StartedThreads {
 public:
  [[nodiscard]] std::set<pid_t> get() const {
    std::set<pid_t> threads;
    const std::set<pid_t> now = live_threads();
    std::ranges::set_difference(now, before_, std::inserter(threads, threads.end()));
    return threads;
  }

 private:
  static std::set<pid_t> threads_before() {
    std::thread([] {}).join();  // with the first thread a sanitizer starts one of its own
    return live_threads();
  }

  const std::set<pid_t> before_ = threads_before();
};

/// As `ps -L` shows it.
inline std::string this_threads_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

inline pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

/// A thread that tells when it has come as far as it can.
class Background {
 public:
  explicit Background(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          id_ = this_thread();
          body();
          ended_ = true;
        }) {}
  ~Background() {
    if (thread_.joinable()) thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// Blocks until the thread has ended or waits for another one. It waits if it was asleep at many looks in a
  /// row, or spins as drivers do.
  void wait_until_stuck() {
    constexpr double kSpinningSeconds = 0.2;
    const double begin = processor_seconds();
    for (int asleep = 0; !ended_ && asleep < 100; asleep = id_ != 0 && is_asleep(id_) ? asleep + 1 : 0) {
      if (processor_seconds() - begin > kSpinningSeconds) return;
      std::this_thread::yield();
    }
  }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] std::thread::id id() const { return thread_.get_id(); }
  void join() { thread_.join(); }

 private:
  /// Processor time of the thread so far; 0 if it has ended.
  [[nodiscard]] double processor_seconds() {
    clockid_t clock{};
    timespec time{};
    if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || clock_gettime(clock, &time) != 0)
      return 0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  std::atomic<pid_t> id_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace penstock::testing
