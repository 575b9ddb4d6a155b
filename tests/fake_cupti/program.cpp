// A program that does what its arguments say, one after the other: recorder_program init steps=20 exit=3

#include "fake_gpu.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/loader/loader.hpp>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

extern "C" int start_profiler();

namespace {

constexpr std::uint64_t kMicrosecond = 1000;

void work() {
  fake_launch("forward", 300 * kMicrosecond);
  fake_launch("backward", 500 * kMicrosecond);
  fake_item();
  fake_compute(50 * kMicrosecond);
}

/// 1 ms: a copy, two kernels, and a synchronization.
void step(bool pageable) {
  fake_copy(2'000'000, pageable ? 1 : 0);
  work();
}

/// Steps with a batch each, which all `differ` or come again after three steps.
void train(long steps, bool differ, bool through_runtime) {
  std::vector<std::uint64_t> batch(250'000);
  for (long i = 0; i < steps; ++i) {
    std::iota(batch.begin(), batch.end(), differ ? i : i % 3);
    fake_copy_from(batch.data(), batch.size() * sizeof batch[0], 1, through_runtime ? 1 : 0);
    work();
  }
}

/// Steps of 20 ms with a batch each of a loader that takes less, whose own threads wait for each other.
void feed_group(std::uint64_t steps) {
  using namespace penstock;
  const FieldReaderPtr samples =
      read_callback({.name = "samples", .dtype = DType::uint8, .shape = {1}}, 2 * steps,
                    [](std::uint64_t, std::span<std::byte> to) { return to.size(); });
  Loader loader(Dataset(std::vector<FieldReaderPtr>{samples}),
                DeviceGroup({Device::open("host:1"), Device::open("host:2")}), {.batch_size = 2});
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < 2; ++i) streams.push_back(loader.destination().receivers()[i].create_stream());
  while (loader.next(streams)) {
    step(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// Steps with a batch each of a loader that takes 5 ms for one.
void feed(std::uint64_t steps) {
  using namespace penstock;
  const FieldReaderPtr samples = read_callback({.name = "samples", .dtype = DType::uint8, .shape = {1}},
                                               steps, [](std::uint64_t, std::span<std::byte> to) {
                                                 std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                                 fake_compute(5000 * kMicrosecond);
                                                 return to.size();
                                               });
  const Device device = Device::open("host");
  const Stream stream = device.create_stream();
  Loader loader(Dataset(std::vector<FieldReaderPtr>{samples}), device,
                {.batch_size = 1, .prefetch_depth = 1});
  while (loader.next(stream)) step(false);
}

/// Steps of 1 ms without a wait: a copy on the default stream, and kernels on another.
void copy_on_default_stream(long steps) {
  const std::uint32_t stream = fake_create_stream();
  for (long i = 0; i < steps; ++i) {
    fake_copy(10'000'000, 0);
    fake_launch_on(stream, "forward", 300 * kMicrosecond, 1);
    fake_launch_on(stream, "backward", 500 * kMicrosecond, 1);
  }
}

long number_of(std::string_view word) {
  return std::atol(std::string(word.substr(word.find('=') + 1)).c_str());
}

/// Lets time pass until the recorder has read all that there is by now: it does so before it flushes once
/// more. Gives up after a time, since a recorder that is broken may never do so.
void wait_for_recorder() {
  const int before = fake_flushes();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (fake_flushes() < before + 2 && std::chrono::steady_clock::now() < end) {
    fake_compute(10'000 * kMicrosecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void act(std::string_view word) {
  if (word == "init") fake_init();
  if (word.starts_with("driver=")) ::dlopen(std::string(word.substr(7)).c_str(), RTLD_NOW);
  if (word.starts_with("steps=")) {
    for (long i = 0; i < number_of(word); ++i) step(true);
  }
  if (word.starts_with("pinned=")) {
    for (long i = 0; i < number_of(word); ++i) step(false);
  }
  // Steps of which every second one has a kernel more, so that only their ranges tell them.
  if (word.starts_with("ranges=") || word.starts_with("library=")) {
    for (long i = 0; i < number_of(word); ++i) {
      const auto number = static_cast<std::uint32_t>(i + 1);
      fake_range("step", number, word.starts_with("library=") ? 1 : 0);
      for (long j = 0; j < i % 7 * i % 5; ++j) fake_launch("more", kMicrosecond);
      step(true);
      fake_range(nullptr, number, word.starts_with("library=") ? 1 : 0);
    }
  }
  if (word.starts_with("default-stream=")) copy_on_default_stream(number_of(word));
  if (word.starts_with("fresh=")) train(number_of(word), true, true);
  if (word.starts_with("again=")) train(number_of(word), false, true);
  if (word.starts_with("again-driver=")) train(number_of(word), false, false);
  if (word.starts_with("launches=")) {  // in turn through the driver and the runtime
    for (long i = 0; i < number_of(word); ++i)
      fake_launch_from("kernel", kMicrosecond, static_cast<int>(i % 2));
  }
  if (word.starts_with("allocating=")) {
    for (long i = 0; i < number_of(word); ++i) fake_allocate(), step(false);
  }
  if (word.starts_with("fed=")) feed(static_cast<std::uint64_t>(number_of(word)));
  if (word.starts_with("group=")) feed_group(static_cast<std::uint64_t>(number_of(word)));
  if (word.starts_with("say=")) std::printf("%s\n", std::string(word.substr(4)).c_str());
  if (word.starts_with("complain=")) std::fprintf(stderr, "%s\n", std::string(word.substr(9)).c_str());
  if (word == "recorded") wait_for_recorder();
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
  fake_leave_out_waits();
  for (int i = 1; i < argc; ++i) act(argv[i]);
  return 0;
}
