#include "cupti.hpp"
#include "fake_gpu.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Stricter than CUPTI: activities that are not enabled give nothing, buffers come back only when they are
// asked for, and one subscriber is all there is.

using namespace penstock::recorder;

namespace {

constexpr CuptiResult kInvalid = 1;
constexpr CuptiResult kMaxLimit = 12;
constexpr std::uint16_t kDefaultStream = 7;
constexpr CuptiResult kNotSupported = 27;

constexpr std::array kDriverNames = {"",
                                     "cuInit",
                                     "cuMemcpyHtoDAsync_v2",
                                     "cuMemcpyDtoHAsync_v2",
                                     "cuLaunchKernel",
                                     "cuStreamSynchronize",
                                     "cuMemHostAlloc",
                                     "cuMemAlloc_v2"};
constexpr std::array kRuntimeNames = {"",
                                      "cudaDriverGetVersion_v3020",
                                      "cudaMemcpyAsync_v3020",
                                      "cudaMemcpyAsync_v3020",
                                      "cudaLaunchKernel_v7000",
                                      "cudaStreamSynchronize_v3020",
                                      "cudaHostAlloc_v3020",
                                      "cudaMalloc_v3020"};
enum Function : std::uint32_t { kInit = 1, kToDevice, kToHost, kLaunch, kSynchronize, kPin, kAllocate };

struct Fake {
  std::mutex mutex;
  CuptiCallback callback = nullptr;
  void* callback_data = nullptr;
  std::set<std::pair<int, std::uint32_t>> callbacks;
  std::set<std::pair<int, std::uint32_t>> calls;
  std::uint64_t activities = 0;
  CuptiBufferRequested requested = nullptr;
  CuptiBufferCompleted completed = nullptr;
  std::vector<std::vector<std::uint8_t>> records;
  std::uint64_t device_free = 0;
  bool nvtx = false;  ///< its ranges arrive here
  std::size_t dropped = 0;
  int flushes = 0;
};
Fake& fake() {
  static Fake* const one = new Fake;  // outlives the exit handlers
  return *one;
}
std::atomic<std::uint64_t> skew{0};
std::atomic<std::uint32_t> correlations{100};

std::atomic<clockid_t> clock_id{CLOCK_MONOTONIC};

std::uint64_t now() {
  timespec time{};
  ::clock_gettime(clock_id, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec) +
         skew;
}

/// True if FAKE_CUPTI_REFUSES names it: a number of an activity, "subscribers", "callbacks", or a function
/// whose callbacks are refused, without its version.
bool refuses(std::string_view what) {
  const char* const refused = std::getenv("FAKE_CUPTI_REFUSES");
  if (refused == nullptr) return false;
  return (std::string(",") + refused + ',').find(std::string(",").append(what) + ',') != std::string::npos;
}

std::string_view name_of(int domain, std::uint32_t function) {
  const std::string_view name = (domain == kDriverDomain ? kDriverNames : kRuntimeNames).at(function);
  return name.substr(0, name.find("_v"));
}

/// `chosen`: also if its kind of activity is not enabled.
template <typename Record>
void add_record(const Record& record, bool chosen = false) {
  const std::lock_guard lock(fake().mutex);
  if (!chosen && (fake().activities >> record.activity & 1) == 0) return;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&record);
  fake().records.emplace_back(bytes, bytes + sizeof record);
}

void tell(int site, int domain, std::uint32_t function, std::uint32_t correlation, const void* parameters) {
  CuptiCallback callback = nullptr;
  void* data = nullptr;
  {
    const std::lock_guard lock(fake().mutex);
    if (!fake().callbacks.contains({domain, function})) return;
    callback = fake().callback;
    data = fake().callback_data;
  }
  CuptiCallDetails details{};
  details.site = site;
  details.correlation = correlation;
  details.parameters = parameters;
  if (callback != nullptr) callback(data, domain, function, &details);
}

bool is_chosen(int domain, std::uint32_t function) {
  const std::lock_guard lock(fake().mutex);
  return fake().calls.contains({domain, function});
}

/// What a call of the runtime and its call of the driver get.
struct Parameters {
  CuptiCopyParameters runtime{};
  CuptiCopyParameters driver{};
};

/// A call of the runtime, which calls the driver; if not `through_runtime`, of the driver alone.
template <typename Act>
void call(Function function, const Act& act, const Parameters& parameters = {}, bool through_runtime = true) {
  const std::uint32_t runtime = ++correlations;
  const std::uint32_t driver = ++correlations;
  if (through_runtime) tell(0, kRuntimeDomain, function, runtime, &parameters.runtime);
  tell(0, kDriverDomain, function, driver, &parameters.driver);
  const std::uint64_t begin = now();
  act(driver);
  const std::uint64_t end = now();
  tell(1, kDriverDomain, function, driver, &parameters.driver);
  if (through_runtime) tell(1, kRuntimeDomain, function, runtime, &parameters.runtime);
  const auto thread = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(::pthread_self()));
  // Of a call that the runtime makes of the driver, some versions of CUPTI make a record, too.
  if (!through_runtime || std::getenv("FAKE_CUPTI_DOUBLES") != nullptr)
    add_record(CuptiCallRecord{kActivityDriver, function, begin, end, 0, thread, driver, 0},
               is_chosen(kDriverDomain, function));
  if (through_runtime)
    add_record(CuptiCallRecord{kActivityRuntime, function, begin, end, 0, thread, driver, 0},
               is_chosen(kRuntimeDomain, function));
}

/// A CUPTI before 12.8 has no such choice.
CuptiResult choose_call(int domain, std::uint32_t function, bool on) {
  const std::lock_guard lock(fake().mutex);
  if (std::getenv("FAKE_CUPTI_OLD") != nullptr) return kInvalid;
  if (on) {
    fake().calls.insert({domain, function});
  } else {
    fake().calls.erase({domain, function});
  }
  return kCuptiSuccess;
}

std::uint64_t run_on_device(std::uint64_t nanoseconds) {
  const std::lock_guard lock(fake().mutex);
  const std::uint64_t begin = std::max(now(), fake().device_free);
  fake().device_free = begin + nanoseconds;
  return begin;
}

/// With a stream of the driver's own. Only the context's record tells of its default stream.
void make_context() {
  add_record(CuptiStreamRecord{kActivityStream, 1, kDefaultStream + 1, 0, 2, 0});
  add_record(CuptiContextRecord{kActivityContext, 1, 0, 0, kDefaultStream});
}

CuptiCopyRecord copy_record(std::uint8_t kind, std::uint8_t from, std::uint8_t to, std::uint64_t bytes,
                            std::uint64_t begin, std::uint64_t nanoseconds, std::uint32_t correlation) {
  return {kActivityCopy,  kind,       from, to, 1, bytes, begin, begin + nanoseconds, 0, 1,
          kDefaultStream, correlation};
}

}  // namespace

extern "C" {

CuptiResult cuptiGetVersion(std::uint32_t* version) { return *version = 28, kCuptiSuccess; }
CuptiResult cuptiGetTimestamp(std::uint64_t* time) { return *time = now(), kCuptiSuccess; }

CuptiResult cuptiSubscribe(CuptiSubscriber* subscriber, CuptiCallback callback, void* data) {
  const std::lock_guard lock(fake().mutex);
  if (refuses("subscribers")) return kNotSupported;
  if (fake().callback != nullptr || std::getenv("FAKE_CUPTI_TAKEN") != nullptr)
    return kCuptiMultipleSubscribers;
  fake().callback = callback;
  fake().callback_data = data;
  *subscriber = &fake();
  return kCuptiSuccess;
}
CuptiResult cuptiUnsubscribe(CuptiSubscriber subscriber) {
  const std::lock_guard lock(fake().mutex);
  if (subscriber != &fake()) return kInvalid;
  fake().callback = nullptr;
  fake().callbacks.clear();
  return kCuptiSuccess;
}
CuptiResult cuptiEnableCallback(std::uint32_t on, CuptiSubscriber subscriber, int domain,
                                std::uint32_t function) {
  const std::lock_guard lock(fake().mutex);
  if (subscriber != &fake()) return kInvalid;
  if (refuses("callbacks") || refuses(name_of(domain, function))) return kNotSupported;
  if (on != 0) {
    fake().callbacks.insert({domain, function});
  } else {
    fake().callbacks.erase({domain, function});
  }
  return kCuptiSuccess;
}
CuptiResult cuptiGetCallbackName(int domain, std::uint32_t function, const char** name) {
  const auto& names = domain == kDriverDomain ? kDriverNames : kRuntimeNames;
  if (function == 0 || function >= names.size()) return kInvalid;
  *name = names[function];
  return kCuptiSuccess;
}
CuptiResult cuptiActivityRegisterCallbacks(CuptiBufferRequested requested, CuptiBufferCompleted completed) {
  const std::lock_guard lock(fake().mutex);
  fake().requested = requested;
  fake().completed = completed;
  return kCuptiSuccess;
}
CuptiResult cuptiActivityEnable(std::int32_t activity) {
  const std::lock_guard lock(fake().mutex);
  if (activity == kActivityStream && std::getenv("FAKE_CUPTI_NO_STREAMS") != nullptr) return kInvalid;
  if (refuses(std::to_string(activity))) return kNotSupported;
  fake().activities |= std::uint64_t{1} << activity;
  return kCuptiSuccess;
}
CuptiResult cuptiActivityDisable(std::int32_t activity) {
  const std::lock_guard lock(fake().mutex);
  fake().activities &= ~(std::uint64_t{1} << activity);
  return kCuptiSuccess;
}
CuptiResult cuptiActivityEnableDriverApi(std::uint32_t function, std::uint8_t on) {
  return choose_call(kDriverDomain, function, on != 0);
}
CuptiResult cuptiActivityEnableRuntimeApi(std::uint32_t function, std::uint8_t on) {
  return choose_call(kRuntimeDomain, function, on != 0);
}
CuptiResult cuptiActivityFlushAll(std::uint32_t) {
  std::vector<std::vector<std::uint8_t>> records;
  CuptiBufferRequested requested = nullptr;
  CuptiBufferCompleted completed = nullptr;
  {
    const std::lock_guard lock(fake().mutex);
    ++fake().flushes;
    if (fake().requested == nullptr) return kInvalid;
    records.swap(fake().records);
    requested = fake().requested;
    completed = fake().completed;
    fake().dropped = std::getenv("FAKE_CUPTI_DROPS") != nullptr ? 3 : 0;
  }
  if (std::getenv("FAKE_CUPTI_SLOW") != nullptr) ::usleep(300'000);
  for (std::size_t at = 0; at < records.size();) {
    std::uint8_t* buffer = nullptr;
    std::size_t bytes = 0;
    std::size_t most = 0;
    requested(&buffer, &bytes, &most);
    if (buffer == nullptr) return kInvalid;
    std::size_t used = 0;
    do {
      std::copy(records[at].begin(), records[at].end(), buffer + used);
      used += records[at++].size();
    } while (std::getenv("FAKE_CUPTI_SMALL_BUFFERS") == nullptr && at < records.size() &&
             used + records[at].size() + 8 <= bytes);
    completed(nullptr, 0, buffer, bytes, used);
  }
  return kCuptiSuccess;
}
CuptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes, const void** record) {
  std::size_t at = 0;
  if (*record != nullptr) {
    const auto* const last = static_cast<const std::uint8_t*>(*record);
    std::int32_t activity = 0;
    std::memcpy(&activity, last, sizeof activity);
    at = static_cast<std::size_t>(last - buffer) +
         (activity == kActivityMarker                                   ? sizeof(CuptiMarkerRecord)
          : activity == kActivityContext                                ? sizeof(CuptiContextRecord)
          : activity == kActivityStream                                 ? sizeof(CuptiStreamRecord)
          : activity == kActivityKernel                                 ? sizeof(CuptiKernelRecord)
          : activity == kActivityRuntime || activity == kActivityDriver ? sizeof(CuptiCallRecord)
                                                                        : sizeof(CuptiCopyRecord));
  }
  if (at >= valid_bytes) return kMaxLimit;
  *record = buffer + at;
  return kCuptiSuccess;
}
CuptiResult cuptiActivityGetNumDroppedRecords(CuptiContext, std::uint32_t, std::size_t* dropped) {
  const std::lock_guard lock(fake().mutex);
  *dropped = std::exchange(fake().dropped, 0);
  return kCuptiSuccess;
}

void fake_init() {
  const char* const injected = std::getenv("CUDA_INJECTION64_PATH");
  if (injected == nullptr) return;
  void* const library = ::dlopen(injected, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "fake driver: %s\n", ::dlerror());
    return;
  }
  const auto initialize = reinterpret_cast<int (*)()>(::dlsym(library, "InitializeInjection"));
  if (initialize == nullptr || initialize() != 1) std::fprintf(stderr, "fake driver: the injection failed\n");
  make_context();
}

void fake_compute(std::uint64_t nanoseconds) { skew += nanoseconds; }

void fake_leave_out_waits() { clock_id = CLOCK_PROCESS_CPUTIME_ID; }

void fake_copy(std::uint64_t bytes, int pageable) { fake_copy_from(nullptr, bytes, pageable, 1); }

void fake_copy_from(const void* source, std::uint64_t bytes, int pageable, int through_runtime) {
  const std::uint64_t nanoseconds = pageable != 0 ? bytes / 10 : bytes / 50;
  // Of the driver's call, a stream is where the runtime has the direction.
  const Parameters parameters{{nullptr, source, bytes, 1}, {nullptr, source, bytes, 0}};
  call(
      kToDevice,
      [&](std::uint32_t correlation) {
        const std::uint64_t begin = run_on_device(nanoseconds);
        add_record(copy_record(1, pageable != 0 ? 1 : 2, 3, bytes, begin, nanoseconds, correlation));
        const std::uint64_t end = begin + nanoseconds;
        fake_compute(pageable != 0 && end > now() ? end - now() : 4000);
      },
      parameters, through_runtime != 0);
}

void fake_synchronize() {
  call(kSynchronize, [](std::uint32_t) {
    const std::uint64_t until = fake().device_free;
    fake_compute(until > now() ? until - now() + 1000 : 1000);
  });
}

void fake_sleep(std::uint64_t nanoseconds) {
  call(kSynchronize, [nanoseconds](std::uint32_t) {
    const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000),
                        static_cast<long>(nanoseconds % 1'000'000'000)};
    ::nanosleep(&time, nullptr);
  });
}

void fake_item() {
  call(kToHost, [](std::uint32_t correlation) {
    add_record(copy_record(2, 3, 1, 4, run_on_device(1500), 1500, correlation));
    fake_compute(2000);
  });
  fake_synchronize();
}

std::uint32_t fake_create_stream() {
  static std::atomic<std::uint32_t> streams{kDefaultStream + 1};
  const std::uint32_t stream = ++streams;
  add_record(CuptiStreamRecord{kActivityStream, 1, stream, 0, 1, 0});
  return stream;
}

void fake_launch(const char* kernel, std::uint64_t nanoseconds) { fake_launch_from(kernel, nanoseconds, 1); }

void fake_launch_from(const char* kernel, std::uint64_t nanoseconds, int through_runtime) {
  fake_launch_on(kDefaultStream, kernel, nanoseconds, through_runtime);
}

void fake_launch_on(std::uint32_t stream, const char* kernel, std::uint64_t nanoseconds,
                    int through_runtime) {
  const auto act = [&](std::uint32_t correlation) {
    CuptiKernelRecord record{};
    record.activity = kActivityKernel;
    record.begin = run_on_device(nanoseconds);
    record.end = record.begin + nanoseconds;
    record.context = 1;
    record.stream = stream;
    static std::int32_t launches = 0;
    const bool same = std::getenv("FAKE_CUPTI_GRIDS") == nullptr;
    record.grid[0] = same ? 1 : ++launches;
    record.grid[1] = record.grid[2] = 1;
    record.correlation = correlation;
    record.name = kernel;
    add_record(record);
    fake_compute(5000);
  };
  call(kLaunch, act, {}, through_runtime != 0);
}

void fake_range(const char* name, std::uint32_t number, int library) {
  const auto thread = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(::pthread_self()));
  if (!fake().nvtx) {
    const char* const injected = std::getenv("NVTX_INJECTION64_PATH");
    void* const recorder = injected == nullptr ? nullptr : ::dlopen(injected, RTLD_NOW | RTLD_LOCAL);
    if (recorder == nullptr) return;
    const auto start = reinterpret_cast<int (*)(void*)>(::dlsym(recorder, "InitializeInjectionNvtx2"));
    if (start == nullptr || start(&fake()) != 1) return;
  }
  add_record(CuptiMarkerRecord{kActivityMarker,
                               name != nullptr ? kMarkerBegins : kMarkerEnds,
                               now(),
                               number,
                               2,
                               0,
                               thread,
                               {},
                               name,
                               library != 0 ? "library" : nullptr});
}
CuptiResult cuptiNvtxInitialize2(void* functions) {
  if (functions != &fake()) return kInvalid;
  fake().nvtx = true;
  return kCuptiSuccess;
}

void fake_pin() {
  call(kPin, [](std::uint32_t) { fake_compute(300'000); });
}

void fake_allocate() {
  call(kAllocate, [](std::uint32_t) { fake_compute(100'000); });
}

int fake_subscribers() {
  const std::lock_guard lock(fake().mutex);
  return fake().callback != nullptr ? 1 : 0;
}
std::uint64_t fake_activities() {
  const std::lock_guard lock(fake().mutex);
  return fake().activities;
}
int fake_flushes() {
  const std::lock_guard lock(fake().mutex);
  return fake().flushes;
}
}
