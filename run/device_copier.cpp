#include "run/device_copier.hpp"

#include "run/host_pages.hpp"
#include "run/lanes.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

namespace penstock::run {

namespace {

constexpr std::size_t kLargestPiece = std::size_t{512} << 10;

/// Pieces that threads move: small ones let the link begin early, large ones cost fewer calls. All sizes are
/// powers of two, so that a slot holds whole pieces.
std::size_t piece_bytes(std::size_t bytes) {
  return std::clamp(std::bit_floor(bytes / 64), std::size_t{64} << 10, kLargestPiece);
}

/// What is sent at a time, at least.
std::size_t sent_bytes(std::size_t bytes) {
  return std::clamp(std::bit_floor(bytes / 4), piece_bytes(bytes), std::size_t{1} << 20);
}

/// What is fetched at a time.
std::size_t fetched_bytes(std::size_t bytes) {
  return std::clamp(std::bit_floor(bytes / Lane::kSlots), piece_bytes(bytes), Lane::kSlotBytes);
}

}  // namespace

struct DeviceCopier::Engine {
  Engine(const std::string& library, Ordinal ordinal)
      : device(penstock::Device::open("cuda:" + std::to_string(ordinal), {.driver_library = library})),
        workers(*device.host_workers()),
        up_stores(LinkProfile::defaults(device.info()).streaming_stores ? StoreKind::streaming
                                                                        : StoreKind::cached),
        lanes(device) {}

  /// The last bytes may still be on their way. The source is free.
  void to_device(const penstock::Stream& stream, Lane& lane, std::byte* to, const std::byte* from,
                 std::size_t bytes) {
    const std::size_t piece = piece_bytes(bytes);
    const std::size_t count = align_up(bytes, piece) / piece;
    const std::size_t of_slot = Lane::kSlotBytes / piece;
    const std::size_t least = sent_bytes(bytes) / piece;
    std::size_t sent = 0;
    std::size_t open = 0;  // slots
    const auto step = [&](std::size_t moved) {
      while (sent != moved && (moved - sent >= least || moved == count)) {
        const std::size_t last = std::min(moved, (sent / of_slot + 1) * of_slot);
        PinnedRing::Slot& slot = lane.slot(sent / of_slot);
        const std::size_t at = sent * piece;
        stream.copy(to + at, slot.data() + at % Lane::kSlotBytes, std::min(last * piece, bytes) - at,
                    CopyDirection::h2d);
        slot.sent(stream);
        sent = last;
      }
      const auto is_free = [&] {
        return (open < Lane::kSlots || sent >= (open - Lane::kSlots + 1) * of_slot) &&
               lane.slot(open).is_free();
      };
      while (open * of_slot < count && is_free()) ++open;
      return std::min(open * of_slot, count);
    };
    lane.mover.run(count, kLargestPiece / piece, step, [&](std::size_t number) {
      const std::size_t at = number * piece;
      copy_bytes(lane.slot(number / of_slot).data() + at % Lane::kSlotBytes, from + at,
                 std::min(piece, bytes - at), up_stores);
    });
    lane.turn += open;
  }

  /// While parts cross the link, pages are made for them, and parts before them are moved out of their slots.
  /// False if the destination cannot be written.
  bool to_host(const penstock::Stream& stream, Lane& lane, std::byte* to, const std::byte* from,
               std::size_t bytes) {
    const std::size_t piece = piece_bytes(bytes);
    const std::size_t count = align_up(bytes, piece) / piece;
    const std::size_t part = fetched_bytes(bytes);
    const std::size_t parts = align_up(bytes, part) / part;
    const std::size_t of_part = part / piece;
    std::size_t fetched = 0;
    std::size_t arrived = 0;
    const auto fetch = [&](std::size_t end) {
      for (; fetched < std::min(end, parts); ++fetched) {
        PinnedRing::Slot& slot = lane.slot(fetched);
        slot.wait();
        const std::size_t at = fetched * part;
        stream.copy(slot.data(), from + at, std::min(part, bytes - at), CopyDirection::d2h);
        slot.sent(stream);
      }
    };
    fetch(Lane::kSlots);
    if (!make_pages_present(to, bytes, workers)) return false;
    const auto step = [&](std::size_t moved) {
      fetch(moved / of_part + Lane::kSlots);
      while (arrived < fetched && lane.slot(arrived).is_free()) ++arrived;
      return std::min(arrived * of_part, count);
    };
    lane.mover.run(count, kLargestPiece / piece, step, [&](std::size_t number) {
      const std::size_t at = number * piece;
      copy_bytes(to + at, lane.slot(number / of_part).data() + at % part, std::min(piece, bytes - at),
                 StoreKind::streaming);
    });
    lane.turn += parts;
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
