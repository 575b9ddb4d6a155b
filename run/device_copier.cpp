#include "run/device_copier.hpp"

#include "run/host_pages.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <exception>
#include <utility>

namespace penstock::run {

struct DeviceCopier::Engine {
  Engine(const std::string& library, Ordinal ordinal)
      : device(penstock::Device::open("cuda:" + std::to_string(ordinal), {.driver_library = library})),
        transfers(device) {}

  Device device;
  TransferEngine transfers;
};

DeviceCopier::DeviceCopier(std::string library, Ordinal device, Context primary)
    : library_(std::move(library)), device_(device), primary_(primary) {}

DeviceCopier::~DeviceCopier() = default;

bool DeviceCopier::opens() {
  const std::lock_guard lock(mutex_);
  if (engine_ != nullptr || failed_) return !failed_;
  try {
    engine_ = std::make_unique<Engine>(library_, device_);
  } catch (const std::exception&) {
    failed_ = true;
  }
  return !failed_;
}

bool DeviceCopier::copy(const CopyCall& call, bool to_host) {
  auto* const to = reinterpret_cast<std::byte*>(call.to);
  const auto* const from = reinterpret_cast<const std::byte*>(call.from);
  const MemoryKind kinds[] = {MemoryKind::pageable, MemoryKind::device};
  try {
    const penstock::Stream stream = engine_->device.wrap_stream(call.stream);
    if (to_host && !make_pages_present(to, call.bytes, *engine_->device.host_workers())) return false;
    const Transfer transfer = engine_->transfers.copy(
        to, from, call.bytes,
        {.source_kind = kinds[to_host ? 1 : 0], .destination_kind = kinds[to_host ? 0 : 1], .after = &stream});
    if (to_host || call.blocking) {
      transfer.synchronize();
    } else {
      transfer.synchronize_source();
      transfer.enqueue_wait(stream);
    }
    return true;
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    return false;
  }
}

}  // namespace penstock::run
