#include "device/cuda_fixture.hpp"
#include "support/bytes.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <new>
#include <thread>

namespace penstock::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kPageBytes = 4096;

/// A page that can be registered.
class Page {
 public:
  Page() : data_(mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Page() { munmap(data_, kPageBytes); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_;
};

class CudaBackend : public CudaTest {
 protected:
  [[nodiscard]] Backend& backend() const { return device_.backend(); }
  [[nodiscard]] StreamHandle stream() const { return stream_.native(); }

  /// Copies some bytes there and back.
  void expect_usable() {
    const auto bytes = random_bytes(kPageBytes, 7);
    std::vector<std::byte> back(kPageBytes, kPoison);
    void* memory = backend().device_allocate(kPageBytes);
    backend().copy(memory, bytes.data(), kPageBytes, CopyDirection::h2d, stream());
    backend().copy(back.data(), memory, kPageBytes, CopyDirection::d2h, stream());
    backend().stream_synchronize(stream());
    backend().device_free(memory);
    EXPECT_EQ(first_difference(bytes, back), -1);
  }

  /// One call of every entry that throws, by the driver's function that it calls.
  [[nodiscard]] std::vector<std::pair<const char*, std::function<void()>>> calls() {
    Backend& b = backend();
    const StreamHandle s = stream();
    const EventHandle e = event_.native();
    return {
        {"cuMemGetInfo", [&b] { static_cast<void>(b.memory()); }},
        {"cuCtxEnablePeerAccess", [&b, this] { b.enable_peer(peer_.backend()); }},
        {"cuStreamCreateWithPriority", [&b] { b.stream_destroy(b.stream_create(StreamPriority::high)); }},
        {"cuStreamQuery", [&b, s] { static_cast<void>(b.stream_query(s)); }},
        {"cuStreamSynchronize", [&b, s] { b.stream_synchronize(s); }},
        {"cuStreamWaitEvent", [&b, s, e] { b.stream_wait_event(s, e); }},
        {"cuStreamWaitValue32", [&b, s, this] { b.stream_wait_value(s, word_, 0); }},
        {"cuLaunchKernel", [&b, s] { b.stream_occupy(s, 1e-9); }},
        {"cuEventCreate", [&b] { b.event_destroy(b.event_create(EventTiming::off, EventWait::poll)); }},
        {"cuEventRecord", [&b, s, e] { b.event_record(e, s); }},
        {"cuEventQuery", [&b, e] { static_cast<void>(b.event_query(e)); }},
        {"cuEventSynchronize", [&b, e] { b.event_synchronize(e); }},
        {"cuMemAlloc", [&b] { b.device_free(b.device_allocate(kPageBytes)); }},
        {"cuMemHostRegister",
         [&b, this] {
           b.host_register(page_.data(), kPageBytes, false);
           b.host_unregister(page_.data());
         }},
        {"cuMemHostAlloc", [&b] { b.host_free(b.host_allocate(kPageBytes)); }},
        {"cuPointerGetAttributes", [&b, this] { static_cast<void>(b.kind_of(memory_)); }},
        {"cuPointerGetAttributes", [&b, this] { static_cast<void>(b.owns(memory_)); }},
        {"cuPointerGetAttributes", [&b, this] { static_cast<void>(b.device_address(pinned_)); }},
        {"cuMemcpyHtoDAsync", [&b, s, this] { b.copy(memory_, pinned_, 16, CopyDirection::h2d, s); }},
        {"cuMemcpyDtoHAsync", [&b, s, this] { b.copy(pinned_, memory_, 16, CopyDirection::d2h, s); }},
        {"cuMemcpyDtoDAsync", [&b, s, this] { b.copy(memory_ + 32, memory_, 16, CopyDirection::d2d, s); }},
        {"cuMemsetD8Async", [&b, s, this] { b.fill(memory_, 1, 16, s); }},
        {"cuLaunchKernel",
         [&b, s, this] {
           b.copy_pieces(piece_, 1, s);
           b.stream_synchronize(s);
         }},
        {"cuLaunchKernel",
         [&b, s, this] {
           b.gather({.source = memory_,
                     .source_rows = 1,
                     .row_elements = 16,
                     .count = 1,
                     .destination = memory_ + 32},
                    s);
         }},
        {"cuLaunchKernel",
         [&b, s, this] {
           b.fill(memory_ + 64, 0, 64, s);  // tables that name no value
           b.split_rows(split(1), s);
         }},
        {"cuLaunchKernel",
         [&b, s, this] {
           b.fill_order({.run = {.order = std::nullopt, .count = 1},
                         .indices = reinterpret_cast<std::uint64_t*>(memory_)},
                        s);
         }},
        {"cuLaunchKernel",
         [&b, s, this] {
           b.hash({.source = memory_, .bytes = 16, .sums = reinterpret_cast<HashSum*>(memory_ + 64)}, s);
         }},
    };
  }

  /// A split whose tables, at memory_ + 64, the caller writes.
  [[nodiscard]] SplitRequest split(std::uint64_t count) const {
    return {.rows = memory_,
            .row_bytes = 16,
            .count = count,
            .destination = memory_ + 32,
            .values = reinterpret_cast<const RowValue*>(memory_ + 96),
            .firsts = reinterpret_cast<const std::uint32_t*>(memory_ + 64),
            .value_count = 1};
  }

  Device device_ = open();
  Device peer_ = open("cuda:1");
  Stream stream_ = device_.create_stream();
  Event event_ = device_.create_event();
  std::byte* memory_ = static_cast<std::byte*>(backend().device_allocate(kPageBytes));
  void* pinned_ = backend().host_allocate(kPageBytes);
  Page page_;
  // Beyond the bytes of the copies, which may be in flight while a call reads these.
  std::uint32_t* word_ = new (static_cast<std::byte*>(pinned_) + kPageBytes / 2) std::uint32_t(0);
  CopyPiece* piece_ =
      new (static_cast<std::byte*>(pinned_) + kPageBytes / 4) CopyPiece{memory_, memory_ + 32, 16};

  void TearDown() override {
    fake.reset();  // after a failure of the device even freeing fails
    backend().device_free(memory_);
    backend().host_free(pinned_);
  }
};

TEST_F(CudaBackend, EveryFailureNamesItsCall) {
  for (const auto& [function, call] : calls()) {
    call();
    fake.fail(function, 1, 999);
    const DeviceError error = device_error(call);
    EXPECT_EQ(error.call(), function);
    EXPECT_EQ(error.name(), "CUDA_ERROR_UNKNOWN");
    EXPECT_EQ(error.code(), 999);
    expect_usable();
  }
}

TEST_F(CudaBackend, NoCallGoesOnWithoutItsContext) {
  for (const auto& [function, call] : calls()) {
    const long before = fake.calls(function);
    fake.fail("cuCtxGetCurrent", 1, 999);
    EXPECT_EQ(device_error(call).code(), 999) << function;
    EXPECT_EQ(fake.calls(function), before) << function;
  }
}

TEST_F(CudaBackend, GathersTakeNoMoreBlocksThanTheyMay) {
  GatherRequest request{.source = memory_,
                        .source_rows = 1,
                        .row_elements = 1,
                        .count = kPageBytes / 2,
                        .destination = memory_ + 1};
  request.destination = memory_ + kPageBytes / 2;
  const auto blocks = [&] {
    backend().gather(request, stream());
    return fake.last_grid();
  };
  EXPECT_EQ(blocks(), 8u) << "two for each of the four multiprocessors";
  request.blocks = 3;
  EXPECT_EQ(blocks(), 3u);
  request.count = 1;
  EXPECT_EQ(blocks(), 1u);
}

TEST_F(CudaBackend, SplitsTakeAsManyBlocksAsFillTheDevice) {
  backend().fill(memory_ + 64, 0, 64, stream());  // tables that name no value
  void* const rows = backend().device_allocate(4096 * 16);
  const auto blocks = [&](std::uint64_t count) {
    SplitRequest request = split(count);
    request.rows = rows;
    backend().split_rows(request, stream());
    backend().stream_synchronize(stream());
    return fake.last_grid();
  };
  EXPECT_EQ(blocks(1), 1u);
  EXPECT_EQ(blocks(4 * 32), 1u) << "four warps of 32 rows each";
  EXPECT_EQ(blocks(4 * 32 + 1), 2u);
  EXPECT_EQ(blocks(4096), 24u) << "six for each of the four multiprocessors";
  backend().device_free(rows);
}

TEST_F(CudaBackend, TheCallersContextStaysAsItWas) {
  using Get = int (*)(void**);
  using Push = int (*)(void*);
  using Retain = int (*)(void**, int);
  const auto get = fake.entry<Get>("cuCtxGetCurrent");
  const auto push = fake.entry<Push>("cuCtxPushCurrent");
  const auto pop = fake.entry<Get>("cuCtxPopCurrent");
  void* ours = nullptr;
  void* other = nullptr;
  fake.entry<Retain>("cuDevicePrimaryCtxRetain")(&ours, 0);
  fake.entry<Retain>("cuDevicePrimaryCtxRetain")(&other, 1);
  ASSERT_NE(ours, other);
  const auto expect_current = [&](void* expected) {
    for (const auto& [function, call] : calls()) {
      void* current = nullptr;
      call();
      get(&current);
      EXPECT_EQ(current, expected) << function;
      fake.fail(function, 1, 999);
      device_error(call);
      get(&current);
      EXPECT_EQ(current, expected) << function << " that fails";
    }
    {
      const Device another = open();
    }
    void* current = nullptr;
    get(&current);
    EXPECT_EQ(current, expected) << "opened and closed";
  };
  expect_current(nullptr);
  push(other);
  expect_current(other);
  push(ours);
  fake.reset();
  expect_current(ours);
  EXPECT_EQ(fake.calls("cuCtxPushCurrent"), 0) << "ours was current already";
  void* popped = nullptr;
  EXPECT_EQ(pop(&popped), 0);
  EXPECT_EQ(popped, ours);
  EXPECT_EQ(pop(&popped), 0);
  EXPECT_EQ(popped, other);
  EXPECT_NE(pop(&popped), 0) << "nothing was left on the stack";
  for (const int ordinal : {0, 1}) fake.entry<int (*)(int)>("cuDevicePrimaryCtxRelease")(ordinal);
}

TEST_F(CudaBackend, ManyThreadsUseOneDevice) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn) expect_usable();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaBackend, FailedCopySurfacesAndStays) {
  fake.fail_work("cuMemcpyHtoDAsync", 1, 700);
  backend().copy(memory_, pinned_, kPageBytes, CopyDirection::h2d, stream());
  const DeviceError error = device_error([&] { backend().stream_synchronize(stream()); });
  EXPECT_EQ(error.name(), "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(error.call(), "cuStreamSynchronize");
  EXPECT_THAT(error.what(), HasSubstr("earlier"));
  for (const auto& [function, call] : calls()) {
    EXPECT_EQ(device_error(call).code(), 700) << function;
  }
}

TEST_F(CudaBackend, FailedWorkShowsInQueriesOfItsEvent) {
  fake.fail_work("cuMemcpyDtoDAsync", 1, 719);
  backend().stream_wait_value(stream(), word_, 1);  // or the record may come after the failure, and report it
  backend().copy(memory_ + 32, memory_, 16, CopyDirection::d2d, stream());
  backend().event_record(event_.native(), stream());
  std::atomic_ref(*word_).store(1);
  EXPECT_EQ(device_error([&] { backend().event_synchronize(event_.native()); }).name(),
            "CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_EQ(device_error([&] { static_cast<void>(backend().event_query(event_.native())); }).code(), 719);
  EXPECT_EQ(device_error([&] { static_cast<void>(backend().stream_query(stream())); }).code(), 719);
}

TEST_F(CudaBackend, NotReadyIsNoFailure) {
  backend().stream_wait_value(stream(), word_, 1);
  backend().event_record(event_.native(), stream());
  EXPECT_FALSE(backend().stream_query(stream()));
  EXPECT_FALSE(backend().event_query(event_.native()));
  std::atomic_ref(*word_).store(1);
  backend().event_synchronize(event_.native());
  EXPECT_TRUE(backend().event_query(event_.native()));
}

TEST_F(CudaBackend, ExhaustedDeviceMemoryGivesFigures) {
  fake.set_memory(64 * kPageBytes);
  try {
    backend().device_allocate(64 * kPageBytes);
    FAIL() << "it fitted";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), 64 * kPageBytes);
    EXPECT_EQ(error.used(), kPageBytes);
    EXPECT_EQ(error.free(), 63 * kPageBytes);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cuda:0"), HasSubstr("256 KiB")));
  }
  backend().device_free(backend().device_allocate(63 * kPageBytes));
  expect_usable();
}

TEST_F(CudaBackend, ExhaustedLockedMemoryIsOutOfMemory) {
  fake.set_lock_limit(2 * kPageBytes);
  try {
    backend().host_allocate(2 * kPageBytes);
    FAIL() << "it fitted";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), 2 * kPageBytes);
    EXPECT_THAT(error.what(), HasSubstr("ulimit"));
  }
  backend().host_free(backend().host_allocate(kPageBytes));
}

TEST_F(CudaBackend, RefusedRegistrationsSayWhy) {
  const auto refusal = [&](int code) -> std::string {
    fake.fail("cuMemHostRegister", 1, code);
    try {
      backend().host_register(page_.data(), kPageBytes, false);
    } catch (const Unsupported& error) {
      EXPECT_EQ(backend().kind_of(page_.data()), MemoryKind::pageable);
      expect_usable();
      return error.what();
    }
    return "registered";
  };
  EXPECT_THAT(refusal(2), HasSubstr("ulimit -l"));
  EXPECT_THAT(refusal(304), HasSubstr("ulimit -l"));
  EXPECT_THAT(refusal(712), HasSubstr("registered already"));
  EXPECT_THAT(refusal(801), HasSubstr("does not allow"));
  EXPECT_THAT(refusal(1), HasSubstr("does not take"));
  fake.set_lock_limit(kPageBytes);
  EXPECT_THROW(backend().host_register(page_.data(), kPageBytes, false), Unsupported);
  fake.set_lock_limit(2 * kPageBytes);
  backend().host_register(page_.data(), kPageBytes, false);
  EXPECT_EQ(backend().kind_of(page_.data()), MemoryKind::pinned);
  backend().host_unregister(page_.data());
  EXPECT_EQ(fake.locked_bytes(), kPageBytes);
}

TEST_F(CudaBackend, FailedRegistrationIsNoRefusal) {
  fake.fail("cuMemHostRegister", 1, 700);
  EXPECT_EQ(device_error([&] { backend().host_register(page_.data(), kPageBytes, false); }).code(), 700);
}

TEST_F(CudaBackend, ReadOnlyPagesNeedReadOnlyRegistration) {
  ASSERT_EQ(mprotect(page_.data(), kPageBytes, PROT_READ), 0);
  try {
    backend().host_register(page_.data(), kPageBytes, false);
    FAIL() << "it was registered";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("read-only"));
  }
  backend().host_register(page_.data(), kPageBytes, true);
  EXPECT_EQ(backend().kind_of(page_.data()), MemoryKind::pinned);
  EXPECT_THROW(backend().copy(page_.data(), memory_, kPageBytes, CopyDirection::d2h, stream()), DeviceError);
  backend().host_unregister(page_.data());
  fake.set_read_only_register(0);
  try {
    backend().host_register(page_.data(), kPageBytes, true);
    FAIL() << "it was registered";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("without write permission"));
  }
  ASSERT_EQ(mprotect(page_.data(), kPageBytes, PROT_READ | PROT_WRITE), 0);
  backend().host_register(page_.data(), kPageBytes, true);
  backend().host_unregister(page_.data());
}

TEST_F(CudaBackend, UnmappedMemoryIsAnInvalidArgument) {
  // At an address that the kernel does not choose by itself: elsewhere another thread could get the hole.
  void* hole = mmap(reinterpret_cast<void*>(std::uintptr_t{1} << 30), kPageBytes, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  munmap(hole, kPageBytes);
  EXPECT_THROW(backend().host_register(hole, kPageBytes, false), InvalidArgument);
  expect_usable();
}

TEST_F(CudaBackend, KindsAreWhatTheDriverSays) {
  int local = 0;
  EXPECT_EQ(backend().kind_of(memory_ + kPageBytes - 1), MemoryKind::device);
  EXPECT_EQ(backend().kind_of(pinned_), MemoryKind::pinned);
  EXPECT_EQ(backend().kind_of(&local), MemoryKind::pageable);
  fake.fail("cuPointerGetAttributes", 1, 1);
  EXPECT_EQ(backend().kind_of(pinned_), MemoryKind::pageable)
      << "the driver calls an unknown address invalid";
  EXPECT_THROW(static_cast<void>(backend().device_address(memory_)), InvalidArgument);
}

TEST_F(CudaBackend, ManagedMemoryIsTheDevicesWhereverItLies) {
  fake.set_managed(1);
  EXPECT_EQ(backend().kind_of(memory_), MemoryKind::device);
  EXPECT_EQ(backend().kind_of(pinned_), MemoryKind::pinned);
  EXPECT_THROW(static_cast<void>(backend().device_address(memory_)), InvalidArgument);
}

TEST_F(CudaBackend, MemoryOfOneDeviceAloneIsClosedToPeers) {
  EXPECT_TRUE(backend().is_open_to_peers(memory_ + kPageBytes - 1));
  EXPECT_FALSE(backend().is_open_to_peers(pinned_)) << "not memory of the device";
  fake.close_memory();
  EXPECT_FALSE(backend().is_open_to_peers(memory_));
  fake.set_managed(1);
  EXPECT_TRUE(backend().is_open_to_peers(memory_));
  fake.fail("cuPointerGetAttributes", 1, 1);
  EXPECT_FALSE(backend().is_open_to_peers(memory_)) << "the driver calls an unknown address invalid";
}

TEST_F(CudaBackend, MemoryIsOpenToPeersWhereProcessesCannotShareAny) {
  fake.set_ipc(0);
  const std::size_t bytes = fake.device_bytes();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(backend().is_open_to_peers(memory_));
  EXPECT_EQ(fake.device_bytes(), bytes);
}

TEST_F(CudaBackend, ForeignMemoryAndStreamsAreShared) {
  void* context = nullptr;
  fake.entry<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0);
  fake.entry<int (*)(void*)>("cuCtxPushCurrent")(context);
  unsigned long long address = 0;
  void* foreign = nullptr;
  ASSERT_EQ(fake.entry<int (*)(unsigned long long*, std::size_t)>("cuMemAlloc")(&address, kPageBytes), 0);
  ASSERT_EQ(fake.entry<int (*)(void**, unsigned, int)>("cuStreamCreateWithPriority")(&foreign, 1, 0), 0);
  fake.entry<int (*)(void**)>("cuCtxPopCurrent")(&context);
  auto* memory = reinterpret_cast<std::byte*>(address);
  EXPECT_EQ(backend().kind_of(memory), MemoryKind::device);
  const auto bytes = random_bytes(kPageBytes, 3);
  std::vector<std::byte> back(kPageBytes, kPoison);
  {
    const Stream wrapped = device_.wrap_stream(foreign);
    backend().copy(memory, bytes.data(), kPageBytes, CopyDirection::h2d, wrapped.native());
    backend().copy(back.data(), memory, kPageBytes, CopyDirection::d2h, wrapped.native());
    wrapped.synchronize();
  }
  EXPECT_EQ(fake.live_streams(), 2) << "whoever made it destroys it";
  EXPECT_EQ(first_difference(bytes, back), -1);
  backend().device_free(memory);
  backend().stream_destroy(foreign);
  fake.entry<int (*)(int)>("cuDevicePrimaryCtxRelease")(0);
}

TEST_F(CudaBackend, RegisteredMemoryIsReachedAtTheAddressThatTheDeviceHasForIt) {
  for (const bool equal : {false, true}) {
    fake.set_equal_addresses(equal);
    auto* const bytes = static_cast<std::byte*>(page_.data());
    backend().host_register(bytes, kPageBytes, false);
    EXPECT_EQ(backend().device_address(bytes) == bytes, equal);
    EXPECT_EQ(backend().device_address(backend().device_address(bytes)), backend().device_address(bytes));
    std::ranges::copy(random_bytes(kPageBytes, 8), bytes);
    auto* const word = new (bytes) std::uint32_t(0);
    backend().stream_wait_value(stream(), word, 1);
    backend().gather({.source = backend().device_address(bytes),
                      .source_rows = 1,
                      .row_elements = kPageBytes,
                      .count = 1,
                      .destination = memory_},
                     stream());
    std::atomic_ref(*word).store(1);
    std::vector<std::byte> back(kPageBytes, kPoison);
    backend().copy(back.data(), memory_, kPageBytes, CopyDirection::d2h, stream());
    EXPECT_EQ(first_difference({bytes, kPageBytes}, back), -1);
    backend().host_unregister(bytes);
  }
}

TEST_F(CudaBackend, LockedMemoryIsLockedForEveryDevice) {
  const Device other = open("cuda:1");
  backend().host_register(page_.data(), kPageBytes, false);
  for (void* const locked : {page_.data(), pinned_}) {
    EXPECT_EQ(other.backend().kind_of(locked), MemoryKind::pinned);
    EXPECT_EQ(other.backend().device_address(locked), backend().device_address(locked));
  }
  backend().host_unregister(page_.data());
}

TEST_F(CudaBackend, LockedMemoryThatIsNotMappedHasNoAddressOnTheDevice) {
  void* context = nullptr;
  fake.entry<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0);
  fake.entry<int (*)(void*)>("cuCtxPushCurrent")(context);
  constexpr unsigned kPortable = 1;
  const auto lock = fake.entry<int (*)(void*, std::size_t, unsigned)>("cuMemHostRegister");
  ASSERT_EQ(lock(page_.data(), kPageBytes, kPortable), 0);
  EXPECT_EQ(backend().kind_of(page_.data()), MemoryKind::pinned);
  EXPECT_THROW(static_cast<void>(backend().device_address(page_.data())), Unsupported);
  backend().host_unregister(page_.data());
  fake.entry<int (*)(void**)>("cuCtxPopCurrent")(&context);
  fake.entry<int (*)(int)>("cuDevicePrimaryCtxRelease")(0);
}

TEST_F(CudaBackend, RowsThatExceedAKernelAreRefusedBeforeItsLaunch) {
  GatherRequest request{.source = memory_, .source_rows = 1, .count = 1, .destination = memory_};
  const auto launches = [&] {
    fake.fail("cuLaunchKernel", 1, 999);  // such rows are nowhere
    const long before = fake.calls("cuLaunchKernel");
    try {
      backend().gather(request, stream());
    } catch (const InvalidArgument&) {
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.code(), 999);
    }
    return fake.calls("cuLaunchKernel") - before;
  };
  request.row_elements = std::uint64_t{1} << 35;
  EXPECT_EQ(launches(), 0);
  --request.row_elements;
  EXPECT_EQ(launches(), 1);
  request.to = DType::float16;
  request.row_elements = std::uint64_t{1} << 32;
  EXPECT_EQ(launches(), 0);
  --request.row_elements;
  EXPECT_EQ(launches(), 1);
}

TEST_F(CudaBackend, StreamsHaveThePriorityAskedFor) {
  const Stream normal = device_.create_stream(StreamPriority::normal);
  const Stream high = device_.create_stream(StreamPriority::high);
  EXPECT_EQ(fake.priority_of_stream(normal.native()), 0);
  EXPECT_EQ(fake.priority_of_stream(high.native()), -5);
}

TEST_F(CudaBackend, EventsAreWaitedForAsTheyWereAskedFor) {
  constexpr unsigned kSleeps = 1;
  constexpr unsigned kNoTime = 2;
  const auto flags = [&](EventTiming timing, EventWait wait) {
    const Event event = device_.create_event(timing, wait);
    return fake.flags_of_event(event.native());
  };
  EXPECT_EQ(flags(EventTiming::off, EventWait::poll), kNoTime);
  EXPECT_EQ(flags(EventTiming::off, EventWait::sleep), kNoTime | kSleeps);
  EXPECT_EQ(flags(EventTiming::on, EventWait::poll), 0u);
  EXPECT_EQ(flags(EventTiming::on, EventWait::sleep), kSleeps);
}

TEST_F(CudaBackend, EventsTakeNoTimeUnlessAsked) {
  EXPECT_THROW(static_cast<void>(backend().event_elapsed(event_.native(), event_.native())), DeviceError);
}

TEST_F(CudaTest, ClosingWaitsForQueuedWork) {
  const Device other = open("cuda:1");
  auto* const locked = static_cast<std::byte*>(other.backend().host_allocate(1));
  *locked = std::byte{0};
  {
    const Device device = open();
    const Stream stream = device.create_stream();
    fake.delay_work("cuMemsetD8Async", 30'000'000);
    device.backend().fill(locked, 1, 1, stream.native());
  }
  EXPECT_EQ(*locked, std::byte{1});
  EXPECT_EQ(fake.live_contexts(), 1);
  EXPECT_EQ(fake.live_streams(), 0);
  other.backend().host_free(locked);
}

TEST_F(CudaTest, NothingIsLeft) {
  {
    const Device device = open();
    const Stream stream = device.create_stream(StreamPriority::high);
    const Event event = device.create_event(EventTiming::on);
    device.backend().host_free(device.backend().host_allocate(kPageBytes));
    device.backend().device_free(device.backend().device_allocate(kPageBytes));
    EXPECT_EQ(fake.live_streams(), 1);
    EXPECT_EQ(fake.live_events(), 1);
    EXPECT_EQ(fake.live_modules(), 1);
  }
  EXPECT_EQ(fake.live_streams(), 0);
  EXPECT_EQ(fake.live_events(), 0);
  EXPECT_EQ(fake.live_modules(), 0);
  EXPECT_EQ(fake.live_contexts(), 0);
  EXPECT_EQ(fake.device_bytes(), 0u);
  EXPECT_EQ(fake.locked_bytes(), 0u);
}

}  // namespace

}  // namespace penstock::testing
