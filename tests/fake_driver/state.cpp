#include "state.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace fake_cuda {

thread_local int Inside::depth = 0;

Script& script() {
  static auto& object = *new Script;
  return object;
}
Memory& memory() {
  static auto& object = *new Memory;
  return object;
}
Registry& registry() {
  static auto& object = *new Registry;
  return object;
}

void Script::reset() {
  const std::lock_guard lock(mutex_);
  rows_.clear();
  any_ = {};
  failed = nullptr;
  version = 12080;
  devices = 2;
  first_gpu = 0;
  peer_access = true;
  memory = std::size_t{1} << 30;
  lock_limit = SIZE_MAX;
  read_only_register = 1;
  equal_addresses = false;
  managed = false;
  ipc = true;
  init_result = kSuccess;
}

void Script::fail(const char* function, long nth, Result code) {
  const std::lock_guard lock(mutex_);
  rows_[function].failures.push_back({nth, code});
}

void Script::fail_any(long nth, Result code) {
  const std::lock_guard lock(mutex_);
  any_ = {nth, code};
  failed = nullptr;
}

void Script::fail_work(const char* function, long nth, Result code) {
  const std::lock_guard lock(mutex_);
  rows_[function].work_failures.push_back({nth, code});
}

void Script::delay(const char* function, long long nanoseconds) {
  const std::lock_guard lock(mutex_);
  rows_[function].delay = nanoseconds;
}

void Script::delay_work(const char* function, long long nanoseconds) {
  const std::lock_guard lock(mutex_);
  rows_[function].work_delay = nanoseconds;
}

long Script::calls(const char* function) {
  const std::lock_guard lock(mutex_);
  return rows_[function].calls;
}

Result Script::count_down(std::vector<Countdown>& countdowns) {
  Result code = kSuccess;
  for (auto countdown = countdowns.begin(); countdown != countdowns.end();) {
    const bool always = countdown->left == 0;
    if (always || countdown->left == 1) code = countdown->code;
    if (!always && --countdown->left == 0) {
      countdown = countdowns.erase(countdown);
    } else {
      ++countdown;
    }
  }
  return code;
}

namespace {

bool gives_back(std::string_view function) {
  constexpr std::string_view kWords[] = {"Current",    "Free",   "Destroy", "Release",
                                         "Unregister", "Unload", "Close",   "Unmap"};
  return std::ranges::any_of(kWords, [&](auto word) { return function.find(word) != function.npos; });
}

}  // namespace

Result Script::enter(const char* function) {
  if (ended) return kDeinitialized;
  if (owner != 0 && owner != getpid()) {
    ++calls_after_fork;
    return kNotInitialized;
  }
  long long delay = 0;
  Result code = kSuccess;
  {
    const std::lock_guard lock(mutex_);
    Row& row = rows_[function];
    ++row.calls;
    delay = row.delay;
    code = count_down(row.failures);
    if (any_.left > 0 && !gives_back(function) && --any_.left == 0) {
      failed = function;
      code = any_.code;
    }
  }
  if (delay != 0) std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
  return code;
}

Script::WorkPlan Script::plan_work(const char* function) {
  const std::lock_guard lock(mutex_);
  Row& row = rows_[function];
  return {count_down(row.work_failures), row.work_delay};
}

namespace {

// True if all of the range is mapped for reading, and also for writing unless `read_only`.
bool is_mapped(Address begin, std::size_t bytes, bool read_only) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  Address reached = begin;
  while (reached < begin + bytes && std::getline(maps, line)) {
    Address from = 0;
    Address to = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%llx-%llx %4s", &from, &to, permissions) != 3 || to <= reached) continue;
    if (from > reached || permissions[0] != 'r' || (!read_only && permissions[1] != 'w')) return false;
    reached = to;
  }
  return reached >= begin + bytes;
}

// A kernel may read all of an aligned chunk of which it needs a byte; on a GPU that stays within the page. A
// GPU's memory also does not share a page with the program's, which may be locked.
constexpr std::size_t kPage = 4096;

Address address_of(const void* data) { return reinterpret_cast<Address>(data); }

thread_local int asking_device = 0;

}  // namespace

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void work_for(int device) { asking_device = device; }

bool Memory::overlaps(Address address, std::size_t bytes) const {
  auto next = ranges_.upper_bound(address);
  if (next != ranges_.end() && next->first < address + bytes) return true;
  return next != ranges_.begin() && (--next)->first + next->second.bytes > address;
}

std::pair<Found, Memory::Range> Memory::look_up(Address address, std::size_t bytes) {
  const Address host = address & (kMappedAbove - 1);
  const std::lock_guard lock(mutex_);
  auto next = ranges_.upper_bound(host);
  if (next == ranges_.begin()) return {};
  const auto& [begin, range] = *--next;
  if (host >= begin + range.bytes || bytes > begin + range.bytes - host) return {};
  const Address device = range.mapped ? host + range.above : 0;
  if (address != host && address != device) return {};
  return {{range.kind, reinterpret_cast<void*>(host), device, range.device, range.closed}, range};
}

Found Memory::find(Address address, std::size_t bytes) {
  const auto [found, range] = look_up(address, bytes);
  if (found.kind != Kind::device) return found;
  const bool access = range.opened_by >= 0 ? range.opened_by == asking_device
                                           : registry().has_access(asking_device, range.device);
  if (access && (!range.closed || asking_device == range.device)) return found;
  return {.kind = Kind::device};
}

void Memory::close_device() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, range] : ranges_) range.closed = range.closed || range.kind == Kind::device;
}

Found Memory::find_for(int device, Address address) {
  const auto [found, range] = look_up(address, 1);
  const bool own = range.kind == Kind::device || range.portable || range.device == device;
  return own ? found : Found{};
}

const void* Memory::kernel_reads(Address address, std::size_t bytes) {
  const Found found = find(address, bytes);
  return found.device == address ? found.host : nullptr;
}

void* Memory::kernel_writes(Address address, std::size_t bytes) {
  const Found found = find(address, bytes);
  return found.device == address && found.kind != Kind::read_only ? found.host : nullptr;
}

std::size_t Memory::device_bytes(int device) {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [address, range] : ranges_) {
    if (range.kind == Kind::device && range.opened_by < 0 && !range.of_pages &&
        (device < 0 || device == range.device))
      sum += range.bytes;
  }
  for (const auto& [handle, pages] : pages_) {
    if (device < 0 || device == pages.device) sum += pages.bytes;
  }
  return sum;
}

std::size_t Memory::locked_bytes_locked() const {
  std::size_t sum = 0;
  for (const auto& [address, range] : ranges_) sum += range.kind == Kind::device ? 0 : range.bytes;
  return sum;
}

std::size_t Memory::locked_bytes() {
  const std::lock_guard lock(mutex_);
  return locked_bytes_locked();
}

Result Memory::allocate_device(int device, std::size_t bytes, Address* address) {
  if (bytes == 0) return kInvalidValue;
  const std::size_t used = device_bytes(device);
  if (used > script().memory || bytes > script().memory - used) return kOutOfMemory;
  void* data = nullptr;
  if (posix_memalign(&data, kPage, whole_pages(bytes)) != 0) return kOutOfMemory;
  const std::lock_guard lock(mutex_);
  *address = address_of(data);
  ranges_[*address] = {.bytes = bytes, .kind = Kind::device, .device = device};
  return kSuccess;
}

Result Memory::free_device(Address address) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second.kind != Kind::device || range->second.opened_by >= 0 ||
      range->second.of_pages)
    return kInvalidValue;
  void* const data = reinterpret_cast<void*>(address);
  if (range->second.file >= 0) {
    // The heap gets back the memory that it gave.
    mmap(data, whole_pages(range->second.bytes), PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    close(range->second.file);
  }
  ranges_.erase(range);
  std::free(data);
  return kSuccess;
}

Result Memory::allocate_host(int device, std::size_t bytes, unsigned flags, void** data) {
  if (bytes == 0) return kInvalidValue;
  const std::lock_guard lock(mutex_);
  const std::size_t limit = script().lock_limit;
  if (const std::size_t used = locked_bytes_locked(); used > limit || bytes > limit - used)
    return kOutOfMemory;
  if (posix_memalign(data, kPage, whole_pages(bytes)) != 0) return kOutOfMemory;
  ranges_[address_of(*data)] = {.bytes = bytes,
                                .kind = Kind::allocated,
                                .device = device,
                                .portable = (flags & penstock::cuda::kHostAllocPortable) != 0,
                                .mapped = (flags & penstock::cuda::kHostAllocDeviceMap) != 0};
  return kSuccess;
}

Result Memory::free_host(void* data) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address_of(data));
  if (range == ranges_.end() || range->second.kind != Kind::allocated) return kInvalidValue;
  ranges_.erase(range);
  std::free(data);
  return kSuccess;
}

Result Memory::add_registered(int device, void* data, std::size_t bytes, unsigned flags) {
  const bool read_only = (flags & penstock::cuda::kHostRegisterReadOnly) != 0;
  if (data == nullptr || bytes == 0) return kInvalidValue;
  if (read_only && script().read_only_register == 0) return kNotSupported;
  if (!is_mapped(address_of(data), bytes, read_only)) return kInvalidValue;
  const std::lock_guard lock(mutex_);
  if (overlaps(address_of(data), bytes)) return kAlreadyRegistered;
  const std::size_t limit = script().lock_limit;
  if (const std::size_t used = locked_bytes_locked(); used > limit || bytes > limit - used)
    return kOutOfMemory;
  ranges_[address_of(data)] = {.bytes = bytes,
                               .kind = read_only ? Kind::read_only : Kind::registered,
                               .device = device,
                               .portable = (flags & penstock::cuda::kHostRegisterPortable) != 0,
                               .above = script().equal_addresses ? 0 : kMappedAbove,
                               .mapped = (flags & penstock::cuda::kHostRegisterDeviceMap) != 0};
  return kSuccess;
}

Result Memory::remove_registered(void* data) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address_of(data));
  if (range == ranges_.end()) return kNotRegistered;
  if (range->second.kind != Kind::registered && range->second.kind != Kind::read_only) return kNotRegistered;
  ranges_.erase(range);
  return kSuccess;
}

void ContextState::wait_idle() {
  std::unique_lock lock(mutex);
  idle.wait(lock, [this] { return outstanding == 0; });
}

std::shared_ptr<Queue> Queue::start(ContextState& context, StreamTraits traits) {
  auto queue = std::make_shared<Queue>(context, traits);
  std::thread([queue] { queue->run(); }).detach();
  return queue;
}

void Queue::push(const char* function, std::function<Result()> work, bool always) {
  {
    const std::lock_guard lock(context_.mutex);
    ++context_.outstanding;
  }
  const std::lock_guard lock(mutex_);
  items_.push_back({std::move(work), script().plan_work(function), always});
  changed_.notify_all();
}

std::shared_ptr<Mark> Queue::mark() {
  auto mark = std::make_shared<Mark>();
  push(
      "a mark",
      [mark] {
        mark->finish();
        return kSuccess;
      },
      true);
  return mark;
}

void Queue::wait_for(std::shared_ptr<Mark> mark) {
  push("a wait", [mark = std::move(mark)] {
    mark->wait();
    return kSuccess;
  });
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Queue::done() {
  const std::lock_guard lock(mutex_);
  return items_.empty() && !busy_;
}

void Queue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return items_.empty() && !busy_; });
}

void Queue::run() {
  const Inside inside;
  work_for(context_.device);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    if (item.plan.delay != 0) std::this_thread::sleep_for(std::chrono::nanoseconds(item.plan.delay));
    Result result = item.plan.failure;
    if (item.always || (result == kSuccess && context_.failure == kSuccess)) {
      if (const Result own = item.work(); result == kSuccess) result = own;
    }
    item.work = nullptr;
    if (result != kSuccess) {
      Result none = kSuccess;
      context_.failure.compare_exchange_strong(none, result);
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    const std::lock_guard context_lock(context_.mutex);
    if (--context_.outstanding == 0) context_.idle.notify_all();
  }
}

void Mark::finish() {
  const std::lock_guard lock(mutex);
  done = true;
  nanoseconds = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  changed.notify_all();
}

void Mark::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return done; });
}

bool Mark::is_done() {
  const std::lock_guard lock(mutex);
  return done;
}

Result Registry::retain(int device, ContextState** context) {
  const std::lock_guard lock(mutex);
  std::unique_ptr<ContextState>& slot = contexts_[device];
  if (slot == nullptr) {
    slot = std::make_unique<ContextState>();
    slot->device = device;
  }
  if (slot->retained++ == 0) slot->failure = kSuccess;
  *context = slot.get();
  return kSuccess;
}

Result Registry::release(int device) {
  ContextState* context = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto found = contexts_.find(device);
    if (found == contexts_.end() || found->second->retained == 0) return kInvalidContext;
    if (--found->second->retained != 0) return kSuccess;
    context = found->second.get();
    // Access ends with either of the two contexts.
    context->peers.clear();
    for (const auto& [other, live] : contexts_) live->peers.erase(device);
  }
  // Work queued in a context that is destroyed is never done.
  Result none = kSuccess;
  context->failure.compare_exchange_strong(none, kContextIsDestroyed);
  context->wait_idle();
  return kSuccess;
}

Result Registry::enable_peer(ContextState& context, ContextState* peer) {
  if (peer == &context || !is_live(peer)) return kInvalidContext;
  if (!script().peer_access) return kPeerAccessUnsupported;
  const std::lock_guard lock(mutex);
  return context.peers.insert(peer->device).second ? kSuccess : kPeerAccessAlreadyEnabled;
}

bool Registry::has_access(int device, int peer) {
  const std::lock_guard lock(mutex);
  const auto context = contexts_.find(device);
  return device == peer || (context != contexts_.end() && context->second->peers.contains(peer));
}

bool Registry::is_live(const ContextState* context) {
  const std::lock_guard lock(mutex);
  for (const auto& [device, live] : contexts_) {
    if (live.get() == context) return live->retained != 0;
  }
  return false;
}

bool Registry::is_retained(int device) {
  const std::lock_guard lock(mutex);
  const auto found = contexts_.find(device);
  return found != contexts_.end() && found->second->retained != 0;
}

long Registry::live_contexts() {
  const std::lock_guard lock(mutex);
  long count = 0;
  for (const auto& [device, live] : contexts_) count += live->retained != 0 ? 1 : 0;
  return count;
}

void Registry::forgive() {
  std::vector<ContextState*> failed;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [device, context] : contexts_) {
      if (context->failure != kSuccess) failed.push_back(context.get());
    }
  }
  for (ContextState* const context : failed) {
    // Work that is still queued would run in the forgiven context, on memory that is gone.
    context->wait_idle();
    context->failure = kSuccess;
  }
}

std::shared_ptr<Queue> Registry::stream(void* handle, ContextState& context) {
  const std::lock_guard lock(mutex);
  if (handle == kPerThreadStream) {
    std::shared_ptr<Queue>& slot = thread_streams_[{&context, std::this_thread::get_id()}];
    if (slot == nullptr) {
      slot = Queue::start(context, {});
      streams.add(slot);  // the default stream waits for it
    }
    return slot;
  }
  if (handle != nullptr && handle != kLegacyStream) return streams.find(handle);
  std::shared_ptr<Queue>& slot = default_streams_[&context];
  if (slot == nullptr) slot = Queue::start(context, {});
  return slot;
}

std::shared_ptr<Queue> Registry::stream_for_work(void* handle, ContextState& context) {
  if (handle == kLegacyStream) handle = nullptr;
  std::shared_ptr<Queue> target = stream(handle, context);
  if (target == nullptr || !target->traits().blocking) return target;
  std::vector<std::shared_ptr<Queue>> others;
  {
    const std::lock_guard lock(mutex);
    if (const auto standard = default_streams_.find(&context); handle != nullptr) {
      if (standard != default_streams_.end()) others.push_back(standard->second);
    } else {
      for (const auto& [other_handle, other] : streams.live) {
        if (&other->context() == &context && other->traits().blocking) others.push_back(other);
      }
    }
  }
  for (const auto& other : others) {
    if (!other->done()) target->wait_for(other->mark());
  }
  return target;
}

}  // namespace fake_cuda
