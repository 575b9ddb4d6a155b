#include "core/shared/parse_number.hpp"
#include "device/cuda/cuda_backend.hpp"
#include "device/host/host_backend.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/device.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <utility>

namespace penstock {

namespace {

[[noreturn]] void refuse_spec(std::string_view spec) {
  throw InvalidArgument(
      fmt::format("unknown device '{}'; use auto, cuda, cuda:N, cpu, host:N, or host:N,key=value,...", spec));
}

/// Those of this process, for all its devices. A forked child has its own: the parent's teams do not end in
/// it. Never blocks, as a lock that another thread held during the fork would.
std::shared_ptr<SharedProcessors> processors() {
  struct OfProcess {
    std::uint64_t generation;
    std::shared_ptr<SharedProcessors> all;
  };
  static std::atomic<const OfProcess*> latest{nullptr};
  const OfProcess* known = latest.load();
  while (known == nullptr || known->generation != fork_generation()) {
    auto made = std::make_unique<const OfProcess>(
        fork_generation(), std::make_shared<SharedProcessors>(host_topology().processors));
    if (latest.compare_exchange_strong(known, made.get())) known = made.release();  // one for each fork
  }
  return known->all;
}

int parse_index(std::string_view spec, std::string_view digits) {
  const auto index = parse_number<int>(digits);
  if (!index || *index < 0) refuse_spec(spec);
  return *index;
}

std::shared_ptr<Backend> open_auto(const DeviceOptions& options) {
  try {
    return open_cuda(0, options);
  } catch (const DeviceError& error) {
    if (!means_no_gpu(error)) throw;
  }
  return open_host();
}

std::shared_ptr<Backend> open_backend(std::string_view spec, const DeviceOptions& options) {
  if (spec == "auto") return open_auto(options);
  if (spec == "host" || spec == "cpu") return open_host();
  if (spec.starts_with("host:")) return open_host(parse_host_options(spec.substr(5)));
  if (spec == "cuda") return open_cuda(0, options);
  if (spec.starts_with("cuda:")) return open_cuda(parse_index(spec, spec.substr(5)), options);
  refuse_spec(spec);
}

}  // namespace

Device Device::open(std::string_view spec, const DeviceOptions& options) {
  return Device(open_backend(spec, options));
}

DeviceInventory Device::inventory(const DeviceOptions& options) {
  DeviceInventory inventory;
  try {
    list_cuda(options, inventory);
  } catch (const std::exception& error) {
    inventory.missing.push_back(fmt::format("The search for GPUs failed: {}", error.what()));
  }
  inventory.devices.push_back(host_device_info());
  return inventory;
}

struct Device::State {
  std::shared_ptr<Backend> backend;
  std::once_flag workers_made;
  std::shared_ptr<HostWorkers> workers;
  std::mutex mutex;
  std::map<std::type_index, std::shared_ptr<void>> attachments;  // guarded by the mutex
};

Device::Device(std::shared_ptr<Backend> backend) : state_(std::make_shared<State>()) {
  if (backend == nullptr) throw InvalidArgument("a device needs a backend; this one is null");
  state_->backend = std::move(backend);
}

const std::shared_ptr<Backend>& Device::shared_backend() const noexcept { return state_->backend; }

const DeviceInfo& Device::info() const noexcept { return backend().info(); }

DeviceMemory Device::memory() const { return backend().memory(); }

Stream Device::create_stream(StreamPriority priority) const { return Stream(shared_backend(), priority); }

Stream Device::wrap_stream(StreamHandle native) const { return Stream(shared_backend(), native); }

Event Device::create_event(EventTiming timing, EventWait wait) const {
  return Event(shared_backend(), timing, wait);
}

std::shared_ptr<JpegDecoder> Device::make_jpeg_decoder(const JpegDecoderOptions& options) const {
  std::unique_ptr<JpegDecoder> decoder = backend().make_jpeg_decoder(options);
  return {decoder.release(), [backend = shared_backend()](JpegDecoder* made) { delete made; }};
}

void* Device::allocate(std::size_t bytes) const { return backend().device_allocate(bytes); }

void* Device::allocate_shared(std::size_t bytes) const { return backend().device_allocate_shared(bytes); }

void Device::deallocate(void* data) const noexcept { backend().device_free(data); }

void* Device::allocate_host(std::size_t bytes) const { return backend().host_allocate(bytes); }

void Device::deallocate_host(void* data) const noexcept { backend().host_free(data); }

void Device::register_host(void* data, std::size_t bytes, bool read_only) const {
  backend().host_register(data, bytes, read_only);
}

void Device::unregister_host(void* data) const noexcept { backend().host_unregister(data); }

MemoryKind Device::kind_of(const void* data) const { return backend().kind_of(data); }

bool Device::owns(const void* data) const { return backend().owns(data); }

bool Device::is_open_to_peers(const void* data) const { return backend().is_open_to_peers(data); }

void* Device::device_address(void* locked) const { return backend().device_address(locked); }

bool Device::same_memory(const Device& other) const noexcept {
  return backend().context() == other.backend().context();
}

bool Device::can_reach(const Device& peer) const {
  if (same_memory(peer)) return true;
  return info().backend == peer.info().backend && backend().can_reach(peer.backend());
}

void Device::enable_peer(const Device& peer) const {
  if (!can_reach(peer)) {
    throw Unsupported(
        fmt::format("{} cannot reach the memory of {}: no link between them is there, or the system does not "
                    "allow its use; "
                    "copy by way of host memory, or feed each device from there",
                    info().spec, peer.info().spec));
  }
  if (!same_memory(peer)) backend().enable_peer(peer.backend());
}

void share_processors(unsigned processes) { processors()->divide(processes); }

std::shared_ptr<HostWorkers> Device::host_workers(std::size_t threads) const {
  const auto make = [node = info().numa_node](std::size_t count, std::shared_ptr<SharedProcessors> shared) {
    return std::make_shared<HostWorkers>(HostWorkersOptions{.threads = count,
                                                            .on_start = [node] { bind_thread_to_node(node); },
                                                            .processors = std::move(shared)});
  };
  if (threads != 0) return make(threads, nullptr);
  std::call_once(state_->workers_made, [&] {
    state_->workers =
        make(std::min(HostWorkersOptions::kMostThreads, host_topology().processors), processors());
  });
  return state_->workers;
}

void* Device::attachment(const std::type_info& type, std::shared_ptr<void> (*make)()) const {
  const std::lock_guard lock(state_->mutex);
  auto& attached = state_->attachments[type];
  if (attached == nullptr) attached = make();
  return attached.get();
}

}  // namespace penstock
