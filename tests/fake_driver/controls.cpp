#include "fake_cuda.hpp"
#include "state.hpp"

using namespace fake_cuda;

void fake_cuda_reset() {
  script().reset();
  registry().forgive();
}
void fake_cuda_fail(const char* function, long nth, int code) { script().fail(function, nth, code); }
void fake_cuda_fail_any(long nth, int code) { script().fail_any(nth, code); }
const char* fake_cuda_failed() { return script().failed; }
int fake_cuda_is_inside() { return Inside::depth > 0 ? 1 : 0; }
void fake_cuda_fail_work(const char* function, long nth, int code) {
  script().fail_work(function, nth, code);
}
void fake_cuda_delay(const char* function, long long nanoseconds) { script().delay(function, nanoseconds); }
void fake_cuda_delay_work(const char* function, long long nanoseconds) {
  script().delay_work(function, nanoseconds);
}
long fake_cuda_calls(const char* function) { return script().calls(function); }
void fake_cuda_set_version(int version) { script().version = version; }
void fake_cuda_set_devices(int count) { script().devices = count; }
void fake_cuda_set_first_gpu(int gpu) { script().first_gpu = gpu; }
void fake_cuda_set_peer_access(int possible) { script().peer_access = possible != 0; }
void fake_cuda_set_memory(std::size_t bytes) { script().memory = bytes; }
void fake_cuda_set_lock_limit(std::size_t bytes) { script().lock_limit = bytes; }
void fake_cuda_set_read_only_register(int supported) { script().read_only_register = supported; }
void fake_cuda_set_equal_addresses(int equal) { script().equal_addresses = equal != 0; }
void fake_cuda_close_memory() { memory().close_device(); }
void fake_cuda_set_ipc(int supported) { script().ipc = supported != 0; }
void fake_cuda_set_managed(int managed) { script().managed = managed != 0; }
void fake_cuda_set_init_result(int code) { script().init_result = code; }

long fake_cuda_live_streams() {
  const std::lock_guard lock(registry().mutex);
  return static_cast<long>(registry().streams.live.size());
}
int fake_cuda_priority_of_stream(void* handle) {
  const std::lock_guard lock(registry().mutex);
  return registry().streams.find(handle)->traits().priority;
}
unsigned fake_cuda_flags_of_event(void* handle) {
  const std::lock_guard lock(registry().mutex);
  return registry().events.find(handle)->flags;
}
unsigned fake_cuda_last_grid() { return script().last_grid; }
long fake_cuda_live_events() {
  const std::lock_guard lock(registry().mutex);
  return static_cast<long>(registry().events.live.size());
}
long fake_cuda_live_modules() {
  const std::lock_guard lock(registry().mutex);
  return static_cast<long>(registry().modules.live.size());
}
long fake_cuda_live_contexts() { return registry().live_contexts(); }
std::size_t fake_cuda_device_bytes() { return memory().device_bytes(); }
long fake_cuda_opened_memory() { return memory().opened(); }
std::size_t fake_cuda_locked_bytes() { return memory().locked_bytes(); }
long fake_cuda_calls_after_fork() { return script().calls_after_fork; }
