#include "run/device_copier.hpp"

#include "run/host_pages.hpp"
#include "run/lanes.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::run {

namespace {

constexpr std::size_t kSmallestPart = std::size_t{512} << 10;
constexpr std::size_t kPiece = std::size_t{128} << 10;  ///< that a worker moves

/// Parts of a copy: small ones let the link begin early, large ones cost fewer calls.
std::size_t part_bytes(std::size_t bytes) {
  return std::clamp(align_up(bytes / (2 * Lane::kSlots), kPiece), kSmallestPart, Lane::kSlotBytes);
}

void copy_together(HostWorkers& workers, std::byte* to, const std::byte* from, std::size_t bytes,
                   StoreKind stores) {
  workers.for_each((bytes + kPiece - 1) / kPiece, [&](std::size_t piece) {
    const std::size_t at = piece * kPiece;
    copy_bytes(to + at, from + at, std::min(kPiece, bytes - at), stores);
  });
}

}  // namespace

struct DeviceCopier::Engine {
  Engine(const std::string& library, Ordinal ordinal)
      : device(penstock::Device::open("cuda:" + std::to_string(ordinal), {.driver_library = library})),
        workers(*device.host_workers()),
        up_stores(LinkProfile::defaults(device.info()).streaming_stores ? StoreKind::streaming
                                                                        : StoreKind::cached),
        lanes(device) {}

  /// The last part may still be on its way. The source is free.
  void to_device(const penstock::Stream& stream, PinnedRing& slots, std::byte* to, const std::byte* from,
                 std::size_t bytes) {
    const std::size_t most = part_bytes(bytes);
    for (std::size_t at = 0; at < bytes; at += most) {
      const std::size_t part = std::min(most, bytes - at);
      PinnedRing::Slot& slot = slots.next();
      copy_together(workers, slot.data(), from + at, part, up_stores);
      stream.copy(to + at, slot.data(), part, CopyDirection::h2d);
      slot.sent(stream);
    }
  }

  /// While parts cross the link, pages are made for them, and parts before them are moved out of their slots.
  /// False if the destination cannot be written.
  bool to_host(const penstock::Stream& stream, PinnedRing& slots, std::byte* to, const std::byte* from,
               std::size_t bytes) {
    const std::size_t most = part_bytes(bytes);
    const auto slot_of = [&](std::size_t at) -> PinnedRing::Slot& { return slots[at / most % slots.size()]; };
    const auto fetch = [&](std::size_t at) {
      if (at >= bytes) return;
      PinnedRing::Slot& slot = slot_of(at);
      slot.wait();
      stream.copy(slot.data(), from + at, std::min(most, bytes - at), CopyDirection::d2h);
      slot.sent(stream);
    };
    const std::size_t ahead = slots.size() * most;
    for (std::size_t at = 0; at < ahead; at += most) fetch(at);
    if (!make_pages_present(to, bytes, workers)) return false;
    for (std::size_t at = 0; at < bytes; at += most) {
      PinnedRing::Slot& slot = slot_of(at);
      slot.wait();
      copy_together(workers, to + at, slot.data(), std::min(most, bytes - at), StoreKind::streaming);
      fetch(at + ahead);
    }
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

std::optional<Reason> DeviceCopier::copy(const CopyCall& call, bool to_host) {
  auto* const to = reinterpret_cast<std::byte*>(call.to);
  const auto* const from = reinterpret_cast<const std::byte*>(call.from);
  try {
    const Lanes::Use lane = engine_->lanes.take(call.stream);
    if (lane == nullptr) return Reason::busy;
    const penstock::Stream stream = engine_->device.wrap_stream(call.stream);
    if (to_host) {
      const bool written = engine_->to_host(stream, lane->slots, to, from, call.bytes);
      return written ? std::nullopt : std::optional(Reason::refused);
    }
    engine_->to_device(stream, lane->slots, to, from, call.bytes);
    if (call.blocking) stream.synchronize();
    return std::nullopt;
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    return Reason::refused;
  }
}

}  // namespace penstock::run
