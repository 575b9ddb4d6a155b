// A program that copies as CUDA's runtime does: it gets the driver's entries by dlsym and cuGetProcAddress.
// Runs the scenarios that are named, with the driver of PENSTOCK_FAKE_DRIVER. Prints what is wrong, and ends
// with 1.
#include "fake_driver/fake_cuda_controls.hpp"
#include "next_symbol.hpp"
#include "run/driver.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include <utility>
#include <vector>

namespace {

using Address = penstock::run::Address;
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

  [[nodiscard]] void* find(const char* name, bool per_thread = false, int version = 12080) const {
    void* function = nullptr;
    require(get_(name, &function, version, per_thread ? 2 : 0, nullptr) == 0, std::string("no ") + name);
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

/// The driver's first copies of a size, which are slow, and those that show what penstock gives if the size
/// may not gain: so that all later ones are taken.
void show_slow_driver(const Cuda& cuda, std::size_t bytes) {
  const Address device = cuda.allocate(bytes);
  Bytes data(bytes);
  const auto delay = [&](long long nanoseconds) {
    for (const char* const name : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"})
      cuda.fake.delay(name, nanoseconds);
  };
  delay(static_cast<long long>(25 * bytes));  // 40 MB/s
  for (int i = 0; i < (bytes < (16u << 20) ? 6 : 1); ++i) {
    if (i == 3) delay(0);
    require(cuda.up(device, data.data(), bytes) == 0, "a copy to the device");
    cuda.must("cuCtxSynchronize");
    require(cuda.down(data.data(), device, bytes) == 0, "a copy to the host");
  }
  delay(0);
  cuda.must("cuMemFree", device);
}

/// A way to ask the driver for a copy of host memory, to the device or back.
struct Way {
  std::string name;
  bool has_stream;
  bool has_default_stream;
  std::function<int(Address to, Address from, std::size_t bytes, Stream on, bool up)> copy;
};

/// As five rows, or five layers, behind others. The ends have their kinds, or none.
penstock::run::BoxCopy box_of(Address to, Address from, std::size_t bytes, bool up, bool unified) {
  using penstock::run::MemoryType;
  const auto side = [&](Address address, bool host) {
    const Address first = address - 2 * (bytes / 5);
    return penstock::run::BoxSide{
        .y = 2,
        .type = unified ? MemoryType::unified : (host ? MemoryType::host : MemoryType::device),
        .host = host && !unified ? first : 1,
        .device = host && !unified ? 1 : first,
        .pitch = bytes / 5};
  };
  return {side(from, up), side(to, !up), bytes / 5, 5, 1};
}

penstock::run::PlaneCopy plane_of(Address to, Address from, std::size_t bytes, bool up) {
  const penstock::run::BoxCopy box = box_of(to, from, bytes, up, false);
  const auto side = [](const penstock::run::BoxSide& of) {
    return penstock::run::PlaneSide{of.x, of.y, of.type, of.host, of.device, of.array, of.pitch};
  };
  return {side(box.from), side(box.to), box.width, box.height};
}

penstock::run::BoxCopy layers_of(Address to, Address from, std::size_t bytes, bool up) {
  penstock::run::BoxCopy box = box_of(to, from, bytes, up, true);
  for (penstock::run::BoxSide* const side : {&box.from, &box.to}) {
    side->z = std::exchange(side->y, 0);
    side->height = 1;
  }
  box.depth = std::exchange(box.height, 1);
  return box;
}

using FirstBatch = int (*)(Address*, Address*, std::size_t*, std::size_t, penstock::run::BatchAttributes*,
                           std::size_t*, std::size_t, std::size_t*, Stream);
using NewBatch = int (*)(Address*, Address*, std::size_t*, std::size_t, penstock::run::BatchAttributes*,
                         std::size_t*, std::size_t, Stream);

/// Asks for these copies in one call.
int copy_batch(void* function, bool is_new, Bytes::size_type count, Address* to, Address* from,
               std::size_t* bytes, penstock::run::AccessOrder order, Stream on) {
  penstock::run::BatchAttributes attributes{.order = order};
  std::size_t first = 0;
  std::size_t failed = 0;
  if (is_new) return reinterpret_cast<NewBatch>(function)(to, from, bytes, count, &attributes, &first, 1, on);
  return reinterpret_cast<FirstBatch>(function)(to, from, bytes, count, &attributes, &first, 1, &failed, on);
}

/// In two copies of a batch.
int copy_halves(void* function, bool is_new, Address to, Address from, std::size_t bytes, Stream on,
                penstock::run::AccessOrder order = penstock::run::AccessOrder::during_call) {
  const std::size_t half = bytes / 2;
  Address targets[] = {to, to + half}, sources[] = {from, from + half};
  std::size_t sizes[] = {half, bytes - half};
  return copy_batch(function, is_new, 2, targets, sources, sizes, order, on);
}

std::vector<Way> ways_of(const Cuda& cuda, bool per_thread) {
  using Blocking = int (*)(Address, Address, std::size_t);
  using Async = int (*)(Address, Address, std::size_t, Stream);
  std::vector<Way> ways;
  const auto add_linear = [&](const char* up_name, const char* down_name, bool has_stream) {
    void* const functions[] = {cuda.find(down_name, per_thread), cuda.find(up_name, per_thread)};
    ways.push_back(
        {up_name, has_stream, true, [=](Address to, Address from, std::size_t bytes, Stream on, bool up) {
           return has_stream ? reinterpret_cast<Async>(functions[up])(to, from, bytes, on)
                             : reinterpret_cast<Blocking>(functions[up])(to, from, bytes);
         }});
  };
  const auto add_shaped = [&](const char* name, bool has_stream, auto shape_of) {
    void* const function = cuda.find(name, per_thread);
    ways.push_back(
        {name, has_stream, true, [=](Address to, Address from, std::size_t bytes, Stream on, bool up) {
           const auto shape = shape_of(to, from, bytes, up);
           return has_stream ? reinterpret_cast<int (*)(const void*, Stream)>(function)(&shape, on)
                             : reinterpret_cast<int (*)(const void*)>(function)(&shape);
         }});
  };
  const auto add_batch = [&](const char* name, bool is_new) {
    void* const function = cuda.find("cuMemcpyBatchAsync", per_thread, is_new ? 13000 : 12080);
    ways.push_back(
        {name, true, per_thread, [=](Address to, Address from, std::size_t bytes, Stream on, bool) {
           return copy_halves(function, is_new, to, from, bytes, on);
         }});
  };
  add_linear("cuMemcpyHtoD", "cuMemcpyDtoH", false);
  add_linear("cuMemcpy", "cuMemcpy", false);
  add_linear("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", true);
  add_linear("cuMemcpyAsync", "cuMemcpyAsync", true);
  add_shaped("cuMemcpy2D", false, plane_of);
  add_shaped("cuMemcpy2DUnaligned", false, plane_of);
  add_shaped("cuMemcpy3D", false, layers_of);
  add_shaped("cuMemcpy2DAsync", true, plane_of);
  add_shaped("cuMemcpy3DAsync", true, layers_of);
  add_batch("cuMemcpyBatchAsync", false);
  cuda.fake.set_version(13000);
  add_batch("cuMemcpyBatchAsync of CUDA 13", true);
  return ways;
}

/// Those that take a stream.
std::vector<Way> asynchronous_ways(const Cuda& cuda) {
  std::vector<Way> ways = ways_of(cuda, false);
  std::erase_if(ways, [](const Way& way) { return !way.has_stream || way.name == "cuMemcpyAsync"; });
  return ways;
}

Address address_of(const Bytes& data) { return reinterpret_cast<Address>(data.data()); }

/// By each entry, up and down.
void entries(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  unsigned seed = 0;
  const auto check = [&](const std::string& name, const std::function<int(Address, Address)>& up,
                         const std::function<int(Address, Address)>& down) {
    Bytes sent = random_bytes(kBytes, ++seed), got(kBytes);
    require(up(device, address_of(sent)) == 0, name + " failed to the device");
    require(down(address_of(got), device) == 0, name + " failed to the host");
    require(got == sent, name + " brought other bytes");
  };
  for (const bool per_thread : {false, true}) {
    for (const Way& way : ways_of(cuda, per_thread)) {
      std::vector<Stream> streams = {Stream{}};
      if (way.has_stream) streams = {Stream{}, kLegacy, kPerThread, cuda.stream(), cuda.stream(1)};
      if (!way.has_default_stream) streams.erase(streams.begin());
      if (way.name.starts_with("cuMemcpyBatch")) std::erase(streams, kLegacy);
      for (const Stream on : streams) {
        const auto up = [&](Address to, Address from) {
          if (way.has_stream) return way.copy(to, from, kBytes, on, true);
          cuda.fake.delay_work("cuMemcpyHtoDAsync", 2'000'000);  // which makes the parts
          const int result = way.copy(to, from, kBytes, on, true);
          require(cuda.call("cuStreamQuery", per_thread ? kPerThread : kLegacy) == 0,
                  way.name + " is not done");
          cuda.fake.delay_work("cuMemcpyHtoDAsync", 0);
          return result;
        };
        check(way.name, up, [&](Address to, Address from) { return way.copy(to, from, kBytes, on, false); });
      }
    }
  }
  const auto up = reinterpret_cast<int (*)(Address, Address, std::size_t)>(cuda.symbol("cuMemcpyHtoD_v2"));
  const auto down =
      reinterpret_cast<int (*)(Address, Address, std::size_t, Stream)>(cuda.symbol("cuMemcpyDtoHAsync_v2"));
  check(
      "dlsym", [&](Address to, Address from) { return up(to, from, kBytes); },
      [&](Address to, Address from) { return down(to, from, kBytes, nullptr); });
  const auto plane = reinterpret_cast<int (*)(const void*)>(cuda.symbol("cuMemcpy2D_v2"));
  const auto copy_plane = [&](Address to, Address from) {
    const penstock::run::PlaneCopy copy = plane_of(to, from, kBytes, to == device);
    return plane(&copy);
  };
  check("dlsym of a 2D copy", copy_plane, copy_plane);
}

/// Later work sees the new bytes, earlier work the old ones, and the source is free at once: on the streams
/// whose work comes before and after.
void order_on(const Cuda& cuda, const Way& way, Stream before, Stream on, Stream after,
              const std::string& where) {
  const std::string name = way.name + ", " + where;
  const Address device = cuda.allocate(kBytes), early = cuda.allocate(kBytes), late = cuda.allocate(kBytes);
  const Bytes old = random_bytes(kBytes, 1), expected = random_bytes(kBytes, 2);
  cuda.must("cuMemcpyHtoD", device, static_cast<const void*>(old.data()), kBytes);
  cuda.must("cuCtxSynchronize");
  Bytes sent = expected;
  cuda.fake.delay_work("cuMemcpyDtoDAsync", 30'000'000);
  cuda.must("cuMemcpyDtoDAsync", early, device, kBytes, before);
  require(way.copy(device, address_of(sent), kBytes, on, true) == 0, name);
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
  require(way.copy(address_of(got), device, kBytes, on, false) == 0, name);
  require(got == old, name + ": a copy to the host came too early");
  for (const Address address : {device, early, late}) cuda.must("cuMemFree", address);
}

void order(const Cuda& cuda) {
  const Stream blocking = cuda.stream(), other = cuda.stream(), free = cuda.stream(1);
  for (const Way& way : asynchronous_ways(cuda)) {
    order_on(cuda, way, free, free, free, "one stream");
    order_on(cuda, way, kPerThread, kPerThread, kPerThread, "the thread's stream");
    order_on(cuda, way, nullptr, blocking, nullptr, "a stream between work of the default stream");
    if (!way.has_default_stream) continue;
    order_on(cuda, way, nullptr, nullptr, nullptr, "the default stream");
    order_on(cuda, way, blocking, nullptr, other, "the default stream between two streams");
  }
}

/// A batch that is to read its sources in stream order gets what earlier work writes there.
void ordered_batches(const Cuda& cuda) {
  void* const function = cuda.find("cuMemcpyBatchAsync");
  const Address device = cuda.allocate(kBytes);
  const Stream on = cuda.stream(1);
  const auto copy = [&](Address to, Address from) {
    return copy_halves(function, false, to, from, kBytes, on, penstock::run::AccessOrder::stream);
  };
  Bytes sent = random_bytes(kBytes, 8), got(kBytes);
  const Bytes early = sent;
  const auto fill = +[](void* data) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::ranges::fill(*static_cast<Bytes*>(data), 0x77);
  };
  require(copy(device, address_of(sent)) == 0, "a batch on an idle stream");
  cuda.must("cuStreamSynchronize", on);
  require(cuda.read(device, kBytes) == early, "a batch brought other bytes");
  cuda.must("cuLaunchHostFunc", on, fill, static_cast<void*>(&sent));
  require(copy(device, address_of(sent)) == 0, "a batch behind other work");
  require(copy(address_of(got), device) == 0, "a batch to the host");
  require(got == Bytes(kBytes, 0x77), "a batch read its sources before the stream came to it");
}

/// What is no run of bytes, and what the driver refuses.
void other_forms(const Cuda& cuda) {
  using penstock::run::AccessOrder;
  const Address device = cuda.allocate(2 * kBytes), more = cuda.allocate(kBytes);
  const Bytes sent = random_bytes(kBytes, 9);
  const Stream on = cuda.stream(1);
  // Rows that lie apart on the device.
  penstock::run::PlaneCopy apart = plane_of(device, address_of(sent), kBytes, true);
  apart.to.device += 2 * apart.to.pitch;
  apart.to.y = 0;
  apart.to.pitch *= 2;
  cuda.must("cuMemcpy2DAsync", &apart, on);
  cuda.must("cuCtxSynchronize");
  for (std::size_t row = 0; row < 5; ++row) {
    const Bytes got = cuda.read(device + row * apart.to.pitch, apart.width);
    require(std::memcmp(got.data(), sent.data() + row * apart.width, apart.width) == 0, "rows have moved");
  }
  // Refused by the driver.
  penstock::run::BoxCopy of_array = layers_of(more, address_of(sent), kBytes, true);
  of_array.to.type = penstock::run::MemoryType::array;
  require(cuda.call("cuMemcpy3DAsync", &of_array, on) == 1, "a copy of an array that is none");
  require(cuda.call("cuMemcpy2D", static_cast<void*>(nullptr)) == 1, "a 2D copy of nothing");
  void* const function = cuda.find("cuMemcpyBatchAsync");
  require(copy_halves(function, false, more, address_of(sent), kBytes, nullptr) == 1, "the default stream");
  require(copy_halves(function, false, more, address_of(sent), kBytes, on, AccessOrder{7}) == 1, "no order");
  const auto batch = [&](std::vector<Address> to, std::vector<Address> from, std::vector<std::size_t> bytes) {
    return copy_batch(function, false, bytes.size(), to.data(), from.data(), bytes.data(), AccessOrder::any,
                      on);
  };
  require(batch({}, {}, {}) == 1, "a batch of nothing");
  require(copy_batch(function, false, 2, nullptr, nullptr, nullptr, AccessOrder::any, on) == 1, "null");
  // Both ways in one batch.
  const Bytes other = random_bytes(kBytes, 10);
  Bytes got(kBytes);
  cuda.must("cuMemcpyHtoD", more, static_cast<const void*>(other.data()), kBytes);
  require(batch({address_of(got), device}, {more, address_of(sent)}, {kBytes, kBytes}) == 0, "both ways");
  require(got == other && cuda.read(device, kBytes) == sent, "both ways moved");
  // A batch is taken or passed on as a whole.
  void* pinned = nullptr;
  cuda.must("cuMemHostAlloc", &pinned, kBytes, 0u);
  std::memcpy(pinned, sent.data(), kBytes);
  const auto locked = reinterpret_cast<Address>(pinned);
  require(batch({device, more}, {address_of(sent), locked}, {kBytes, kBytes}) == 0, "a batch of two kinds");
  require(cuda.read(device, kBytes) == sent && cuda.read(more, kBytes) == sent, "a batch of two kinds moved");
  require(batch({device, more}, {address_of(sent), address_of(sent)}, {kBytes, 64}) == 0, "of two sizes");
  require(batch({device, more}, {locked, locked}, {kBytes, kBytes}) == 0, "a batch of pinned memory");
  // This driver has the first form alone, also for those who ask for the newest one.
  require(copy_halves(cuda.find("cuMemcpyBatchAsync", false, 13000), false, device, address_of(sent), kBytes,
                      on) == 0,
          "the first form");
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
  const Stream captured = cuda.stream(1), other = cuda.stream(1);
  for (const Way& way : asynchronous_ways(cuda)) {
    void* graph = nullptr;
    const auto up = [&](Stream on) { return way.copy(device, address_of(sent), kBytes, on, true); };
    cuda.must("cuStreamBeginCapture", captured, 0);
    require(up(captured) == 0, "in a capture");
    require(up(other) == 0, "on another stream than a captured one");
    cuda.must("cuStreamEndCapture", captured, &graph);
    require(up(captured) == 0, "after a capture");
    require(cuda.read(device, kBytes) == sent, "other bytes by " + way.name);
  }
}

/// Whichever call of the driver fails, the copy is made, or gives the driver's code. A reset context begins
/// anew.
void failures_of(const Cuda& cuda, const std::string& name) {
  const Bytes sent = random_bytes(kBytes, 5);
  cuda.must("cuStreamQuery", kPerThread);  // it begins with its first use
  const long streams = cuda.fake.live_streams();
  for (long nth = 1;; ++nth) {
    const std::vector<Way> ways = asynchronous_ways(cuda);
    const Way& way = *std::ranges::find(ways, name, &Way::name);
    const Address device = cuda.allocate(kBytes);
    cuda.fake.fail_any(nth, 999);
    const int result = way.copy(device, address_of(sent), kBytes, kPerThread, true);
    const bool failed = cuda.fake.failed() != nullptr;
    cuda.fake.reset();
    require(result == 0 || (failed && result == 999), name + " gave " + std::to_string(result));
    if (result == 0)
      require(cuda.read(device, kBytes) == sent, name + ": other bytes with failure " + std::to_string(nth));
    cuda.must("cuMemFree", device);
    cuda.must("cuDevicePrimaryCtxReset", 0);
    require(cuda.fake.live_streams() == streams, "a reset leaves streams");
    void* context = nullptr;
    cuda.must("cuDevicePrimaryCtxRetain", &context, 0);
    if (!failed) return;
  }
}

void failures(const Cuda& cuda) {
  for (const char* const way : {"cuMemcpyHtoDAsync", "cuMemcpy2DAsync", "cuMemcpyBatchAsync"})
    failures_of(cuda, way);
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

/// Asks for the report about itself.
void reporting(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  Bytes data(kBytes);
  require(cuda.up(device, data.data(), kBytes) == 0, "a copy");
  const std::string command = "\"$PENSTOCK\" run --report " + std::to_string(::getpid());
  require(std::system(command.c_str()) == 0, "a report");
}

void killed(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  Bytes data(kBytes);
  require(cuda.up(device, data.data(), kBytes) == 0, "a copy");
  ::kill(::getpid(), SIGKILL);
}

void threads(const Cuda& cuda) {
  std::vector<std::thread> all;
  for (unsigned number = 0; number < 64; ++number) {
    all.emplace_back([&cuda, number] {
      cuda.enter();
      std::mt19937 random(number);
      const Stream on = number % 3 == 0 ? nullptr : cuda.stream(number % 2);
      for (int turn = 0; turn < 3; ++turn) {
        const std::size_t bytes = (1u << 20) + random() % (5u << 20);
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

/// Before the first copy that is taken, and after it, the program closes all files that it has not opened.
void closed(const Cuda& cuda) {
  const Address device = cuda.allocate(kBytes);
  for (unsigned seed = 0; seed < 2; ++seed) {
    for (int file = STDERR_FILENO + 1; file < 1024; ++file) ::close(file);
    const Bytes sent = random_bytes(kBytes, seed);
    require(cuda.up(device, sent.data(), kBytes) == 0, "a copy of a program without files");
    require(cuda.read(device, kBytes) == sent, "other bytes without files");
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
                                                                  {"ordered-batches", ordered_batches},
                                                                  {"other-forms", other_forms},
                                                                  {"other-memory", other_memory},
                                                                  {"capture", capture},
                                                                  {"failures", failures},
                                                                  {"sticky", sticky},
                                                                  {"closed", closed},
                                                                  {"forked", forked},
                                                                  {"exiting", exiting},
                                                                  {"killed", killed},
                                                                  {"reporting", reporting},
                                                                  {"threads", threads},
                                                                  {"fast-driver", fast_driver},
                                                                  {"blocked-streams", blocked_streams},
                                                                  {"read-only", read_only},
                                                                  {"nothing", [](const Cuda&) {}}};
  const std::string name = argv[1];
  // Half of kBytes is of another size.
  constexpr std::array kHalves = {"entries",     "order",   "ordered-batches",
                                  "other-forms", "capture", "failures"};
  if (std::ranges::find(kHalves, name) != kHalves.end()) show_slow_driver(cuda, kBytes / 2);
  if (name == "threads" || name == "blocked-streams") {
    for (const std::size_t bytes : {2u << 20, 8u << 20}) show_slow_driver(cuda, bytes);
  }
  if (name != "nothing" && name != "fast-driver") show_slow_driver(cuda, kBytes);
  scenarios.at(name)(cuda);
  return 0;
}
