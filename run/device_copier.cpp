#include "run/device_copier.hpp"

#include "run/host_pages.hpp"
#include "run/lanes.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

namespace penstock::run {

namespace {

constexpr std::size_t kSmallestPart = std::size_t{512} << 10;
constexpr std::size_t kGrain = std::size_t{128} << 10;

/// Parts of a copy: small ones let the link begin early, large ones cost fewer calls.
std::size_t part_bytes(std::size_t bytes) {
  return std::clamp(align_up(bytes / (2 * Lane::kSlots), kGrain), kSmallestPart, Lane::kSlotBytes);
}

/// Has the team do `parts` parts one after another, and goes on with the next before the last bytes of one
/// are done. `open` waits until a part may begin, and opens it; `done` follows when all of its bytes are
/// moved. After an exception of either nobody is at work any more.
void do_parts(ChunkFiller& filler, std::size_t parts, FunctionRef<void(std::size_t)> open,
              FunctionRef<void(std::size_t)> done) {
  std::size_t opened = 0;
  std::size_t ended = 0;
  std::exception_ptr failure;
  const auto open_next = [&] {
    if (opened == parts || failure) return;
    try {
      open(opened);
      ++opened;
    } catch (...) {
      failure = std::current_exception();
    }
  };
  while (ended < parts) {
    if (opened == ended) open_next();
    if (opened == ended) break;
    try {
      const std::size_t part = ended++;
      filler.finish_first(open_next);
      if (!failure) done(part);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

struct DeviceCopier::Engine {
  Engine(const std::string& library, Ordinal ordinal)
      : device(penstock::Device::open("cuda:" + std::to_string(ordinal), {.driver_library = library})),
        workers(*device.host_workers()),
        up_stores(LinkProfile::defaults(device.info()).streaming_stores ? StoreKind::streaming
                                                                        : StoreKind::cached),
        lanes(device) {}

  /// The last parts may still be on their way. The source is free.
  void to_device(const penstock::Stream& stream, Lane& lane, std::byte* to, const std::byte* from,
                 std::size_t bytes) {
    const std::size_t most = part_bytes(bytes);
    std::deque<PinnedRing::Slot*> filled;
    const auto open = [&](std::size_t part) {
      PinnedRing::Slot& slot = lane.slots.next();
      const std::size_t at = part * most;
      lane.filler.open(std::min(most, bytes - at),
                       [&slot, from, at, stores = up_stores](std::size_t begin, std::size_t count) {
                         copy_bytes(slot.data() + begin, from + at + begin, count, stores);
                       });
      filled.push_back(&slot);
    };
    const auto send = [&](std::size_t part) {
      PinnedRing::Slot& slot = *filled.front();
      filled.pop_front();
      const std::size_t at = part * most;
      stream.copy(to + at, slot.data(), std::min(most, bytes - at), CopyDirection::h2d);
      slot.sent(stream);
    };
    do_parts(lane.filler, (bytes + most - 1) / most, open, send);
  }

  /// While parts cross the link, pages are made for them, and parts before them are moved out of their slots.
  /// False if the destination cannot be written.
  bool to_host(const penstock::Stream& stream, Lane& lane, std::byte* to, const std::byte* from,
               std::size_t bytes) {
    const std::size_t most = part_bytes(bytes);
    const std::size_t parts = (bytes + most - 1) / most;
    const auto slot_of = [&](std::size_t part) -> PinnedRing::Slot& {
      return lane.slots[part % lane.slots.size()];
    };
    const auto fetch = [&](std::size_t part) {
      if (part >= parts) return;
      PinnedRing::Slot& slot = slot_of(part);
      slot.wait();
      const std::size_t at = part * most;
      stream.copy(slot.data(), from + at, std::min(most, bytes - at), CopyDirection::d2h);
      slot.sent(stream);
    };
    for (std::size_t part = 0; part < lane.slots.size(); ++part) fetch(part);
    if (!make_pages_present(to, bytes, workers)) return false;
    const auto open = [&](std::size_t part) {
      PinnedRing::Slot& slot = slot_of(part);
      slot.wait();
      const std::size_t at = part * most;
      lane.filler.open(std::min(most, bytes - at), [&slot, to, at](std::size_t begin, std::size_t count) {
        copy_bytes(to + at + begin, slot.data() + begin, count, StoreKind::streaming);
      });
    };
    do_parts(lane.filler, parts, open, [&](std::size_t part) { fetch(part + lane.slots.size()); });
    return true;
  }

  const Device device;
  HostWorkers& workers;
  const StoreKind up_stores;
  Lanes lanes;
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

std::optional<Reason> DeviceCopier::copy(const CopyCall& call, const std::vector<bool>& to_host) {
  try {
    const Lanes::Use lane = engine_->lanes.take(call.stream);
    if (lane == nullptr) return Reason::busy;
    const penstock::Stream stream = engine_->device.wrap_stream(call.stream);
    for (std::size_t i = 0; i < call.runs.size(); ++i) {
      const Run& run = call.runs[i];
      auto* const to = reinterpret_cast<std::byte*>(run.to);
      const auto* const from = reinterpret_cast<const std::byte*>(run.from);
      if (!to_host[i]) {
        engine_->to_device(stream, *lane, to, from, run.bytes);
      } else if (!engine_->to_host(stream, *lane, to, from, run.bytes)) {
        return Reason::refused;
      }
    }
    if (call.blocking && !to_host.back()) stream.synchronize();
    return std::nullopt;
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    return Reason::refused;
  }
}

}  // namespace penstock::run
