// A program that copies as CUDA's runtime does: it gets the driver's entries by dlsym and cuGetProcAddress.
// Runs the scenarios that are named, with the driver of PENSTOCK_FAKE_DRIVER. Prints what is wrong, and ends
// with 1.
#include "fake_driver/fake_cuda_controls.hpp"
#include "next_symbol.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Address = unsigned long long;
using Bytes = std::vector<unsigned char>;
using Stream = void*;

constexpr std::size_t kBytes = (20u << 20) + 12345;
const auto kLegacy = reinterpret_cast<Stream>(1);
const auto kPerThread = reinterpret_cast<Stream>(2);

void require(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::_Exit(1);
}

Bytes random_bytes(std::size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes data(bytes);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(&data[i], &word, 8);
  }
  return data;
}

/// The driver's entries, as the runtime asks for them.
class Cuda {
 public:
  explicit Cuda(const char* path) : fake(path), library_(::dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    get_ = reinterpret_cast<Get>(::dlsym(library_, "cuGetProcAddress_v2"));
    get_ = reinterpret_cast<Get>(find("cuGetProcAddress"));
    require(call("cuInit", 0u) == 0 && call("cuDevicePrimaryCtxRetain", &context_, 0) == 0, "no context");
    enter();
  }

  [[nodiscard]] void* find(const char* name, bool per_thread = false) const {
    void* function = nullptr;
    require(get_(name, &function, 12080, per_thread ? 2 : 0, nullptr) == 0, std::string("no ") + name);
    return function;
  }
  [[nodiscard]] void* symbol(const char* name) const { return ::dlsym(library_, name); }
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<int (*)(Arguments...)>(find(name))(arguments...);
  }
  template <typename... Arguments>
  void must(const char* name, Arguments... arguments) const {
    const int result = call(name, arguments...);
    require(result == 0, std::string(name) + " gave " + std::to_string(result));
  }
  /// Makes the context current for the calling thread.
  void enter() const { must("cuCtxPushCurrent", context_); }

  [[nodiscard]] Address allocate(std::size_t bytes) const {
    Address address = 0;
    must("cuMemAlloc", &address, bytes);
    return address;
  }
  [[nodiscard]] Stream stream(unsigned flags = 0) const {
    Stream made = nullptr;
    must("cuStreamCreateWithPriority", &made, flags, 0);
    return made;
  }
  int up(Address to, const void* from, std::size_t bytes, Stream on = nullptr) const {
    return call("cuMemcpyHtoDAsync", to, from, bytes, on);
  }
  int down(void* to, Address from, std::size_t bytes, Stream on = nullptr) const {
    return call("cuMemcpyDtoHAsync", to, from, bytes, on);
  }
  [[nodiscard]] Bytes read(Address from, std::size_t bytes) const {
    Bytes data(bytes);
    must("cuCtxSynchronize");
    must("cuMemcpyDtoH", static_cast<void*>(data.data()), from, bytes);
    return data;
  }

  penstock::testing::FakeCuda fake;

 private:
  using Get = int (*)(const char*, void**, int, unsigned long long, int*);
  void* library_;
  Get get_ = nullptr;
  void* context_ = nullptr;
};

/// The driver's first copies of a size, which are slow: so that all later ones are taken.
void show_slow_driver(const Cuda& cuda, std::size_t bytes) {
  const Address device = cuda.allocate(bytes);
  Bytes data(bytes);
  for (const char* const name : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"})
    cuda.fake.delay(name, static_cast<long long>(25 * bytes));  // 40 MB/s
  for (int i = 0; i < (bytes < (16u << 20) ? 3 : 1); ++i) {
    require(cuda.up(device, data.data(), bytes) == 0, "a copy to the device");
    cuda.must("cuCtxSynchronize");
    require(cuda.down(data.data(), device, bytes) == 0, "a copy to the host");
  }
  for (const char* const name : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}) cuda.fake.delay(name, 0);
  cuda.must("cuMemFree", device);
}

/// By each entry, up and down.
void entries(const Cuda& cuda) {
  using Blocking = int (*)(Address, Address, std::size_t);
  using Async = int (*)(Address, Address, std::size_t, Stream);
  const Address device = cuda.allocate(kBytes);
  unsigned seed = 0;
  const auto host = [](Bytes& data) { return reinterpret_cast<Address>(data.data()); };
  const auto check = [&](const std::string& name, const std::function<int(Address, Address)>& up,
                         const std::function<int(Address, Address)>& down) {
    Bytes sent = random_bytes(kBytes, ++seed), got(kBytes);
    require(up(device, host(sent)) == 0, name + " failed to the device");
    require(down(host(got), device) == 0, name + " failed to the host");
    require(got == sent, name + " brought other bytes");
  };
  for (const bool per_thread : {false, true}) {
    const auto blocking = [&](const char* name) {
      return [=, copy = reinterpret_cast<Blocking>(cuda.find(name, per_thread))](Address to, Address from) {
        return copy(to, from, kBytes);
      };
    };
    const auto async = [&](const char* name, Stream on) {
      return [=, copy = reinterpret_cast<Async>(cuda.find(name, per_thread))](Address to, Address from) {
        return copy(to, from, kBytes, on);
      };
    };
    check("cuMemcpyHtoD", blocking("cuMemcpyHtoD"), blocking("cuMemcpyDtoH"));
    check("cuMemcpy", blocking("cuMemcpy"), blocking("cuMemcpy"));
    for (const Stream on : {Stream{}, kLegacy, kPerThread, cuda.stream(), cuda.stream(1)}) {
      check("cuMemcpyHtoDAsync", async("cuMemcpyHtoDAsync", on), async("cuMemcpyDtoHAsync", on));
      check("cuMemcpyAsync", async("cuMemcpyAsync", on), async("cuMemcpyAsync", on));
    }
  }
  const auto up = reinterpret_cast<Blocking>(cuda.symbol("cuMemcpyHtoD_v2"));
  const auto down = reinterpret_cast<Async>(cuda.symbol("cuMemcpyDtoHAsync_v2"));
  check(
      "dlsym", [&](Address to, Address from) { return up(to, from, kBytes); },
      [&](Address to, Address from) { return down(to, from, kBytes, nullptr); });
}

/// Later work sees the new bytes, earlier work the old ones, and the source is free at once: on the streams
/// whose work comes before and after.
void order_on(const Cuda& cuda, Stream before, Stream on, Stream after, const std::string& name) {
  const Address device = cuda.allocate(kBytes), early = cuda.allocate(kBytes), late = cuda.allocate(kBytes);
  const Bytes old = random_bytes(kBytes, 1), expected = random_bytes(kBytes, 2);
  cuda.must("cuMemcpyHtoD", device, static_cast<const void*>(old.data()), kBytes);
  cuda.must("cuCtxSynchronize");
  Bytes sent = expected;
  cuda.fake.delay_work("cuMemcpyDtoDAsync", 30'000'000);
  cuda.must("cuMemcpyDtoDAsync", early, device, kBytes, before);
  require(cuda.up(device, sent.data(), kBytes, on) == 0, name);
  std::ranges::fill(sent, 0xee);
  cuda.fake.delay_work("cuMemcpyDtoDAsync", 0);
  cuda.must("cuMemcpyDtoDAsync", late, device, kBytes, after);
  require(cuda.read(early, kBytes) == old, name + ": earlier work got the new bytes");
  require(cuda.read(late, kBytes) == expected, name + ": later work got other bytes");
  // To the host, with the work that makes the bytes still to come.
  cuda.fake.delay_work("cuMemcpyDtoDAsync", 30'000'000);
  cuda.must("cuMemcpyDtoDAsync", device, early, kBytes, before);
  cuda.fake.delay_work("cuMemcpyDtoDAsync", 0);
  Bytes got(kBytes);
  require(cuda.down(got.data(), device, kBytes, on) == 0, name);
  require(got == old, name + ": a copy to the host came too early");
  for (const Address address : {device, early, late}) cuda.must("cuMemFree", address);
}

void order(const Cuda& cuda) {
  const Stream blocking = cuda.stream(), other = cuda.stream(), free = cuda.stream(1);
  order_on(cuda, free, free, free, "one stream");
  order_on(cuda, nullptr, nullptr, nullptr, "the default stream");
  order_on(cuda, kPerThread, kPerThread, kPerThread, "the thread's stream");
  order_on(cuda, blocking, nullptr, other, "the default stream between two streams");
  order_on(cuda, nullptr, blocking, nullptr, "a stream between work of the default stream");
}

void other_memory(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes), more = cuda.allocate(kBytes);
  void* pinned = nullptr;
  cuda.must("cuMemHostAlloc", &pinned, kBytes, 0u);
  const Bytes sent = random_bytes(kBytes, 3);
  std::memcpy(pinned, sent.data(), kBytes);
  require(cuda.up(device, pinned, kBytes) == 0, "pinned");
  require(cuda.read(device, kBytes) == sent, "pinned brought other bytes");
  cuda.must("cuMemcpyAsync", more, device, kBytes, Stream{});
  require(cuda.up(device, sent.data(), 1000) == 0, "small");
  require(cuda.up(device, sent.data(), kBytes + 1) != 0, "a copy past the end of the memory went well");
  void* context = nullptr;
  cuda.must("cuDevicePrimaryCtxRetain", &context, 1);
  cuda.must("cuCtxPushCurrent", context);
  const int result = cuda.up(device, sent.data(), kBytes);
  require(result != 0, "a copy to memory of another device without access went well");
  cuda.must("cuCtxPopCurrent", &context);
  cuda.fake.set_managed(1);
  require(cuda.up(device, sent.data(), kBytes) == 0, "managed");
}

void capture(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  const Bytes sent = random_bytes(kBytes, 4);
  const Stream captured = cuda.stream(1);
  void* graph = nullptr;
  cuda.must("cuStreamBeginCapture", captured, 0);
  require(cuda.up(device, sent.data(), kBytes, captured) == 0, "in a capture");
  require(cuda.up(device, sent.data(), kBytes) == 0, "on another stream than a captured one");
  cuda.must("cuStreamEndCapture", captured, &graph);
  require(cuda.up(device, sent.data(), kBytes, captured) == 0, "after a capture");
  require(cuda.read(device, kBytes) == sent, "other bytes");
}

/// Whichever call of the driver fails, the copy is made, or gives the driver's code. A reset context begins
/// anew.
void failures(const Cuda& cuda) {
  const Bytes sent = random_bytes(kBytes, 5);
  const long streams = cuda.fake.live_streams();
  for (long nth = 1;; ++nth) {
    const Address device = cuda.allocate(kBytes);
    cuda.fake.fail_any(nth, 999);
    const int result = cuda.up(device, sent.data(), kBytes);
    const bool failed = cuda.fake.failed() != nullptr;
    cuda.fake.reset();
    require(result == 0 || (failed && result == 999), "the result is " + std::to_string(result));
    if (result == 0)
      require(cuda.read(device, kBytes) == sent, "other bytes with failure " + std::to_string(nth));
    cuda.must("cuMemFree", device);
    cuda.must("cuDevicePrimaryCtxReset", 0);
    require(cuda.fake.live_streams() == streams, "a reset leaves streams");
    void* context = nullptr;
    cuda.must("cuDevicePrimaryCtxRetain", &context, 0);
    if (!failed) return;
  }
}

void sticky(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  Bytes data(kBytes);
  cuda.fake.fail_work("cuMemcpyDtoDAsync", 1, 719);
  cuda.must("cuMemcpyDtoDAsync", device, device, std::size_t{64}, Stream{});
  require(cuda.down(data.data(), device, kBytes) == 719, "a copy hides that the context has failed");
  require(cuda.up(device, data.data(), kBytes) == 719, "a copy hides that the context had failed");
}

void forked(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  Bytes data(kBytes);
  require(cuda.up(device, data.data(), kBytes) == 0, "before the fork");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(cuda.up(device, data.data(), kBytes) != 0 ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  require(status == 0, "a copy in a forked child went well, or hung");
  require(cuda.up(device, data.data(), kBytes) == 0, "after the fork");
}

/// The process ends while threads copy.
void exiting(const Cuda& cuda) {
  static std::atomic<int> copying{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([&cuda] {
      cuda.enter();
      const Address device = cuda.allocate(kBytes);
      Bytes data(kBytes);
      while (cuda.up(device, data.data(), kBytes) == 0 && cuda.down(data.data(), device, kBytes) == 0)
        ++copying;
      std::this_thread::sleep_for(std::chrono::hours(1));
    }).detach();
  }
  while (copying < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::exit(0);
}

void killed(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  Bytes data(kBytes);
  require(cuda.up(device, data.data(), kBytes) == 0, "a copy");
  ::kill(::getpid(), SIGKILL);
}

void threads(const Cuda& cuda) {
  std::vector<std::thread> all;
  for (unsigned number = 0; number < 16; ++number) {
    all.emplace_back([&cuda, number] {
      cuda.enter();
      std::mt19937 random(number);
      const Stream on = number % 3 == 0 ? nullptr : cuda.stream(number % 2);
      for (int turn = 0; turn < 3; ++turn) {
        const std::size_t bytes = (1u << 20) + random() % (24u << 20);
        const Address device = cuda.allocate(bytes);
        Bytes sent = random_bytes(bytes, random()), got(bytes);
        const Bytes kept = sent;
        require(cuda.up(device, sent.data(), bytes, on) == 0, "a thread's copy");
        std::ranges::fill(sent, 0);
        require(cuda.down(got.data(), device, bytes, on) == 0 && got == kept, "a thread got other bytes");
        cuda.must("cuMemFree", device);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

/// Streams whose work does not go on hold up no copy of another one.
void blocked_streams(const Cuda& cuda) {
  constexpr std::size_t kSmall = 2u << 20;
  static std::atomic<bool> goes_on{false};
  const auto wait = +[](void*) {
    while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Bytes sent = random_bytes(kSmall, 7);
  std::vector<Address> devices;
  const Address first = cuda.allocate(kSmall);
  for (int i = 0; i < 3; ++i) {
    require(cuda.up(first, sent.data(), kSmall) == 0, "a copy that shows what penstock gives");
    cuda.must("cuCtxSynchronize");
  }
  for (int i = 0; i < 5; ++i) {
    const Stream blocked = cuda.stream(1);
    devices.push_back(cuda.allocate(kSmall));
    cuda.must("cuLaunchHostFunc", blocked, wait, static_cast<void*>(nullptr));
    require(cuda.up(devices[i], sent.data(), kSmall, blocked) == 0, "a copy on a blocked stream");
  }
  goes_on = true;
  for (const Address device : devices) require(cuda.read(device, kSmall) == sent, "other bytes");
}

/// The driver is faster here, so it keeps the size.
void fast_driver(const Cuda& cuda) {
  constexpr std::size_t kSmall = 2u << 20;
  const Address device = cuda.allocate(kSmall);
  const Bytes sent = random_bytes(kSmall, 6);
  for (int i = 0; i < 20; ++i) {
    const bool compared = i < 3;
    cuda.fake.delay("cuEventRecord", compared ? 0 : 20'000'000);  // which only penstock calls
    require(cuda.up(device, sent.data(), kSmall) == 0, "a copy");
  }
}

void read_only(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  void* const data = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(cuda.up(device, data, kBytes) == 0, "a source that cannot be written");
  const Bytes zeros(kBytes);
  require(cuda.read(device, kBytes) == zeros, "other bytes");
}

}  // namespace

int main(int argc, char** argv) {
  require(next_of_itself() == nullptr, "RTLD_NEXT goes by another caller");
  const char* const path = std::getenv("PENSTOCK_FAKE_DRIVER");
  if (argc < 2 || path == nullptr) return 2;
  static const Cuda cuda(path);
  const std::map<std::string, void (*)(const Cuda&)> scenarios = {{"entries", entries},
                                                                  {"order", order},
                                                                  {"other-memory", other_memory},
                                                                  {"capture", capture},
                                                                  {"failures", failures},
                                                                  {"sticky", sticky},
                                                                  {"forked", forked},
                                                                  {"exiting", exiting},
                                                                  {"killed", killed},
                                                                  {"threads", threads},
                                                                  {"fast-driver", fast_driver},
                                                                  {"blocked-streams", blocked_streams},
                                                                  {"read-only", read_only},
                                                                  {"nothing", [](const Cuda&) {}}};
  const std::string name = argv[1];
  if (name == "threads" || name == "blocked-streams") {
    for (const std::size_t bytes : {2u << 20, 8u << 20}) show_slow_driver(cuda, bytes);
  }
  if (name != "nothing" && name != "fast-driver") show_slow_driver(cuda, kBytes);
  scenarios.at(name)(cuda);
  return 0;
}
