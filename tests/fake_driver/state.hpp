#pragma once

#include "device/cuda/driver_types.hpp"

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

/// The state of the fake driver. There is one object of each kind, which is never destroyed: calls may come
/// until the process ends.
namespace fake_cuda {

using penstock::cuda::Address;
using penstock::cuda::IpcMemoryHandle;
using penstock::cuda::Pages;
using penstock::cuda::Result;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kAlreadyRegistered = 712;
inline constexpr Result kNotRegistered = 713;
inline constexpr Result kNotSupported = 801;

/// The calling thread is in the driver while one lives.
struct Inside {
  Inside() { ++depth; }
  ~Inside() { --depth; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  static thread_local int depth;
};

/// The failures, delays and sizes that tests ask for, and the calls that they count.
class Script {
 public:
  void reset();
  void fail(const char* function, long nth, Result code);
  void fail_any(long nth, Result code);
  void fail_work(const char* function, long nth, Result code);
  void delay(const char* function, long long nanoseconds);
  void delay_work(const char* function, long long nanoseconds);
  [[nodiscard]] long calls(const char* function);

  /// Called at the start of every call. Counts it, waits, and gives the failure that a test asked for.
  [[nodiscard]] Result enter(const char* function);

  struct WorkPlan {
    Result failure = kSuccess;
    long long delay = 0;
  };
  [[nodiscard]] WorkPlan plan_work(const char* function);

  std::atomic<int> version{12080};
  std::atomic<int> devices{2};
  std::atomic<int> first_gpu{0};
  std::atomic<bool> peer_access{true};
  std::atomic<std::size_t> memory{std::size_t{1} << 30};
  std::atomic<std::size_t> lock_limit{SIZE_MAX};
  std::atomic<int> read_only_register{1};
  std::atomic<bool> equal_addresses{false};
  std::atomic<bool> managed{false};
  std::atomic<bool> ipc{true};
  std::atomic<Result> init_result{kSuccess};

  std::atomic<const char*> failed{nullptr};
  std::atomic<unsigned> last_grid{0};
  std::atomic<pid_t> owner{0};
  std::atomic<bool> ended{false};
  std::atomic<long> calls_after_fork{0};

 private:
  struct Countdown {
    long left = 0;  // 0: every time
    Result code = kSuccess;
  };
  struct Row {
    long calls = 0;
    long long delay = 0;
    long long work_delay = 0;
    std::vector<Countdown> failures;
    std::vector<Countdown> work_failures;
  };
  static Result count_down(std::vector<Countdown>& countdowns);

  std::mutex mutex_;
  std::map<std::string, Row, std::less<>> rows_;
  Countdown any_;
};

Script& script();

enum class Kind { none, device, registered, read_only, allocated };

/// Devices see registered memory this far above its host address: past every address of the host, and the
/// same for all devices.
inline constexpr Address kMappedAbove = Address{1} << 56;

/// The memory at an address.
struct Found {
  Kind kind = Kind::none;
  void* host = nullptr;  ///< its address for the fake driver itself; null: the device that asks has no access
  Address device = 0;    ///< its address for kernels; 0: none
  int ordinal = -1;      ///< of the device whose memory it is, or which locked it
  bool closed = false;   ///< to other devices
};

/// Says which device the calling thread works for until it says so again: that of the current context in a
/// call, and that of the stream in enqueued work.
void work_for(int device);

/// Device memory and locked host memory by address. Registered memory has another address on the devices than
/// on the host, as CUDA allows it: copies take either, kernels only that of the device.
class Memory {
 public:
  Result allocate_device(int device, std::size_t bytes, Address* address);
  Result free_device(Address address);
  Result allocate_host(int device, std::size_t bytes, unsigned flags, void** data);
  Result free_host(void* data);
  Result add_registered(int device, void* data, std::size_t bytes, unsigned flags);
  Result remove_registered(void* data);
  void close_device();

  // Device memory of other processes, which lies in files of memory. Only whole allocations have a name, and
  // the process that has one does not open it.
  Result name_device(Address address, IpcMemoryHandle* handle);
  Result open_named(int device, const IpcMemoryHandle& handle, Address* address);
  Result close_named(Address address);
  /// The allocation of device memory that `address` lies in.
  Result range_of(Address address, Address* begin, std::size_t* bytes);

  // Addresses, and pages that are mapped there (fixed_addresses.cpp). Pages count as device memory until they
  // are released and mapped nowhere.
  Result create_pages(int device, std::size_t bytes, Pages* pages);
  Result release_pages(Pages pages);
  Result reserve(std::size_t bytes, Address* address);
  Result unreserve(Address address, std::size_t bytes);
  Result map_pages(Address address, std::size_t bytes, Pages pages);
  Result unmap_pages(Address address, std::size_t bytes);
  Result open_pages(Address address, std::size_t bytes, int device);

  /// The memory of [address, address + bytes), by its address on the host or on the devices. Nothing if it is
  /// not all of one range. Memory of another device is found, but has no addresses without access to it.
  [[nodiscard]] Found find(Address address, std::size_t bytes = 1);
  /// The same for pointers that `device` asks about: it knows those of other devices, but not memory that is
  /// locked only for another device.
  [[nodiscard]] Found find_for(int device, Address address);

  /// The address at which the fake driver reads, or writes, the kernels' [address, address + bytes); null if
  /// a kernel would fault.
  [[nodiscard]] const void* kernel_reads(Address address, std::size_t bytes);
  [[nodiscard]] void* kernel_writes(Address address, std::size_t bytes);

  [[nodiscard]] std::size_t device_bytes(int device = -1);
  [[nodiscard]] long opened();
  [[nodiscard]] std::size_t locked_bytes();

 private:
  struct Range {
    std::size_t bytes = 0;
    Kind kind = Kind::none;
    int device = 0;
    bool portable = false;
    Address above = 0;    ///< by how much its address on the devices exceeds that on the host
    bool mapped = true;   ///< for the devices
    bool closed = false;  ///< to all devices but its own
    int file = -1;        ///< of device memory that has a name, or is that of another process
    int opened_by = -1;   ///< the device that has opened it; -1: it is this process's own
    long opened = 0;      ///< how many times
    unsigned long long inode = 0;
    bool of_pages = false;  ///< which count, not this range
  };
  struct PagesState {
    int device = 0;
    std::size_t bytes = 0;
    bool released = false;
    Address mapped_at = 0;  ///< 0: nowhere
  };
  [[nodiscard]] std::map<Pages, PagesState>::iterator pages_at(Address address, std::size_t bytes);
  [[nodiscard]] std::pair<Found, Range> look_up(Address address, std::size_t bytes);
  [[nodiscard]] bool overlaps(Address address, std::size_t bytes) const;
  [[nodiscard]] std::size_t locked_bytes_locked() const;

  std::mutex mutex_;
  std::map<Address, Range> ranges_;
  std::map<Address, std::size_t> reserved_;
  std::map<Pages, PagesState> pages_;
  Pages last_pages_ = 0;
};

Memory& memory();

[[nodiscard]] std::size_t whole_pages(std::size_t bytes);

/// A device's primary context.
struct ContextState {
  int device = 0;
  int retained = 0;
  std::set<int> peers;  ///< devices whose memory it has access to; guarded by the registry's mutex
  std::atomic<Result> failure{kSuccess};
  std::mutex mutex;
  std::condition_variable idle;
  long outstanding = 0;  ///< pieces of work not done, on all streams

  void wait_idle();
};

/// How a stream was made.
struct StreamTraits {
  int priority = 0;
  bool blocking = true;  ///< ordered with the context's default stream, as all are but the non-blocking ones
};

/// Handles of the context's default stream, besides null, and of the calling thread's.
inline void* const kLegacyStream = reinterpret_cast<void*>(1);
inline void* const kPerThreadStream = reinterpret_cast<void*>(2);

struct Mark;

/// One in-order queue with its thread, which ends when the stream is destroyed and its work is done.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue(ContextState& context, StreamTraits traits) : context_(context), traits_(traits) {}
  static std::shared_ptr<Queue> start(ContextState& context, StreamTraits traits);

  /// Runs `work` after the queued work. Once the context has failed, drops `work`, unless `always`.
  void push(const char* function, std::function<Result()> work, bool always = false);
  /// A mark after all queued work.
  std::shared_ptr<Mark> mark();
  /// Holds back later work until `mark` is done.
  void wait_for(std::shared_ptr<Mark> mark);
  void close();
  [[nodiscard]] bool done();
  void wait();
  [[nodiscard]] ContextState& context() const { return context_; }
  [[nodiscard]] const StreamTraits& traits() const { return traits_; }

  std::atomic<bool> capturing{false};

 private:
  struct Item {
    std::function<Result()> work;
    Script::WorkPlan plan;
    bool always = false;
  };
  void run();

  ContextState& context_;
  const StreamTraits traits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool busy_ = false;
  bool closed_ = false;
};

/// The mark that recording an event makes.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  long long nanoseconds = 0;

  void finish();
  void wait();
  [[nodiscard]] bool is_done();
};

struct EventState {
  ContextState* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Mark> mark;
};

struct ModuleState {
  std::string text;
};

struct FunctionState {
  FunctionState(const char* of_kernel, void* of_module) : name(of_kernel), module(of_module) {}
  std::string name;
  void* module;
};

/// Contexts and handles.
class Registry {
 public:
  Result retain(int device, ContextState** context);
  Result release(int device);
  [[nodiscard]] bool is_live(const ContextState* context);
  [[nodiscard]] bool is_retained(int device);
  [[nodiscard]] long live_contexts();
  /// Makes failed contexts usable once the work queued in them has been dropped.
  void forgive();
  Result enable_peer(ContextState& context, ContextState* peer);
  [[nodiscard]] bool has_access(int device, int peer);

  template <typename T>
  struct Table {
    std::map<void*, std::shared_ptr<T>> live;
    void* add(std::shared_ptr<T> object) {
      void* handle = object.get();
      live.emplace(handle, std::move(object));
      return handle;
    }
    std::shared_ptr<T> find(void* handle) const {
      const auto found = live.find(handle);
      return found == live.end() ? nullptr : found->second;
    }
  };

  std::mutex mutex;
  Table<Queue> streams;
  Table<EventState> events;
  Table<ModuleState> modules;
  Table<FunctionState> functions;

  /// The stream of `handle`, or the context's default stream for null, for queuing work. Null if there is no
  /// such stream. The default stream and the streams that block on it wait for each other's work.
  std::shared_ptr<Queue> stream_for_work(void* handle, ContextState& context);
  /// The same to ask for its state.
  std::shared_ptr<Queue> stream(void* handle, ContextState& context);

 private:
  std::map<int, std::unique_ptr<ContextState>> contexts_;
  std::map<ContextState*, std::shared_ptr<Queue>> default_streams_;
  std::map<std::pair<ContextState*, std::thread::id>, std::shared_ptr<Queue>> thread_streams_;
};

Registry& registry();

/// Runs the kernel `name` on the calling thread. Returns an illegal address if a GPU would fault. There are
/// two implementations: plain loops (kernels.cpp), and the kernels' own source (own_kernels/).
Result run_kernel(const std::string& name, const void* arguments, unsigned blocks);

/// Bytes of the kernel's parameter; 0 for a kernel that is not known.
std::size_t kernel_argument_bytes(const std::string& name);

/// Threads of a block that the kernel is written for.
unsigned kernel_threads(const std::string& name);

}  // namespace fake_cuda
