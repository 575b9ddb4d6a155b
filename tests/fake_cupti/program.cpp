// A program that does what its arguments say, one after the other: recorder_program init steps=20 exit=3

#include "fake_gpu.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

extern "C" int start_profiler();

namespace {

constexpr std::uint64_t kMicrosecond = 1000;

/// 1 ms: a copy, two kernels, and a synchronization.
void step(bool pageable) {
  fake_copy(2'000'000, pageable ? 1 : 0);
  fake_launch("forward", 300 * kMicrosecond);
  fake_launch("backward", 500 * kMicrosecond);
  fake_item();
  fake_compute(50 * kMicrosecond);
}

long number_of(std::string_view word) {
  return std::atol(std::string(word.substr(word.find('=') + 1)).c_str());
}

void act(std::string_view word) {
  if (word == "init") fake_init();
  if (word.starts_with("steps=")) {
    for (long i = 0; i < number_of(word); ++i) step(true);
  }
  if (word.starts_with("pinned=")) {
    for (long i = 0; i < number_of(word); ++i) step(false);
  }
  if (word.starts_with("say=")) std::printf("%s\n", std::string(word.substr(4)).c_str());
  if (word.starts_with("complain=")) std::fprintf(stderr, "%s\n", std::string(word.substr(9)).c_str());
  if (word.starts_with("sleep=")) std::this_thread::sleep_for(std::chrono::milliseconds(number_of(word)));
  if (word == "profiler") {
    const int result = start_profiler();
    std::printf("profiler: %d, %d subscriber, activities %lx\n", result, fake_subscribers(),
                static_cast<unsigned long>(fake_activities()));
  }
  if (word == "activities") std::printf("activities %lx\n", static_cast<unsigned long>(fake_activities()));
  if (word == "fork") {
    if (const pid_t child = ::fork(); child == 0) {
      step(true);
      std::exit(0);
    } else {
      ::waitpid(child, nullptr, 0);
    }
  }
  std::fflush(stdout);
  if (word.starts_with("exit=")) std::exit(static_cast<int>(number_of(word)));
  if (word == "_exit") ::_exit(0);
  if (word == "abort") std::abort();
  if (word == "kill") ::raise(SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) act(argv[i]);
  return 0;
}
