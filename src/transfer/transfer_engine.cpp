#include "transfer/copy_lane.hpp"
#include "transfer/paced_copier.hpp"
#include "transfer/packed_copier.hpp"
#include "transfer/region_kind.hpp"
#include "transfer/staging.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

namespace penstock {

namespace {

// Device memory for packing is allocated in segments of this size.
constexpr std::size_t kScratchSegment = std::size_t{32} << 20;

/// Segments of pinned memory for packing and staging hold what is packed at once, and no less than a huge
/// page.
std::size_t pinned_segment(const DeviceTuning& tuning) {
  return std::max(tuning.packing.window_bytes, std::size_t{2} << 20);
}

unsigned choose_threads(const HostWorkers& workers, const TransferOptions& options,
                        const LinkProfile& profile) {
  const unsigned wanted = options.threads != 0 ? options.threads : profile.staging_threads;
  return std::clamp(wanted, 1u, static_cast<unsigned>(workers.threads()));
}

/// As many as for copies, or more if the number was not given.
unsigned choose_fill_threads(const HostWorkers& workers, const TransferOptions& options,
                             const DeviceTuning& tuning, unsigned threads) {
  if (options.threads != 0) return threads;
  const auto processors = std::min<std::size_t>(workers.threads(), host_topology().processors - 1);
  return std::max(threads, std::min(static_cast<unsigned>(processors), tuning.fill_threads));
}

void check_options(const TransferOptions& options) {
  if (options.slots < 2 || options.slots > 64) {
    throw InvalidArgument(fmt::format("{} slots were asked for; use 2 to 64", options.slots));
  }
  if (options.chunk_bytes != 0 && options.chunk_bytes < 4096) {
    throw InvalidArgument(
        fmt::format("chunks of {} bytes were asked for; use 4096 or more", options.chunk_bytes));
  }
}

PackingOptions packing_options(const Device& device, unsigned threads, const TransferOptions& options) {
  PackingOptions packing{.threads = threads, .tuning = device.info().tuning.packing};
  if (options.streaming_stores) packing.tuning.streaming_stores = *options.streaming_stores;
  return packing;
}

StagingOptions staging_options(const Device& device, CopyDirection direction, unsigned threads,
                               const TransferOptions& options, const LinkProfile& profile) {
  // These threads do not read D2H bytes again, but the copy engine soon reads H2D bytes.
  const bool streaming =
      options.streaming_stores.value_or(direction == CopyDirection::d2h || profile.streaming_stores);
  return {.threads = threads,
          .slots = options.slots,
          .chunks = {.smallest = device.info().tuning.first_staged_chunk,
                     .largest = options.chunk_bytes != 0 ? options.chunk_bytes : profile.chunk_bytes},
          .stores = streaming ? StoreKind::streaming : StoreKind::cached};
}

CopyDirection direction_of(MemoryKind source, MemoryKind destination) {
  if (is_host(source) && is_host(destination)) {
    throw InvalidArgument("neither end of the transfer is device memory; use memcpy between host regions");
  }
  if (is_host(source)) return CopyDirection::h2d;
  return is_host(destination) ? CopyDirection::d2h : CopyDirection::d2d;
}

void check_regions(const void* destination, const void* source, std::size_t bytes) {
  if (destination == nullptr || source == nullptr) {
    throw InvalidArgument(fmt::format("the {} of a transfer of {} bytes is null",
                                      source == nullptr ? "source" : "destination", bytes));
  }
  const auto to = reinterpret_cast<std::uintptr_t>(destination);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  if (to < from ? from - to < bytes : to - from < bytes) {
    throw InvalidArgument(
        fmt::format("source {} and destination {} of {} bytes overlap", source, destination, bytes));
  }
}

}  // namespace

class TransferEngineImpl {
 public:
  TransferEngineImpl(Device device, TransferOptions options)
      : device_(std::move(device)),
        profile_(options.profile ? *std::move(options.profile) : LinkProfile::defaults(device_.info())),
        workers_(options.workers ? options.workers : device_.host_workers(options.threads)),
        threads_(choose_threads(*workers_, options, profile_)),
        fill_threads_(choose_fill_threads(*workers_, options, device_.info().tuning, threads_)),
        events_(std::make_shared<EventPool>(device_)),
        timed_events_(std::make_shared<EventPool>(device_, EventTiming::on)),
        pinned_(std::make_shared<Pool>(
            make_pinned_pool(device_, {.segment_bytes = pinned_segment(device_.info().tuning),
                                       .workers = workers_,
                                       .purpose = "staging"}))),
        scratch_(std::make_shared<Pool>(make_device_pool(device_, {.segment_bytes = kScratchSegment}))),
        free_(device_, workers_, pinned_, scratch_, events_, threads_, fill_threads_, options, profile_),
        ordered_(device_, workers_, pinned_, scratch_, events_, threads_, fill_threads_, options, profile_) {}

  Transfer copy(void* destination, const void* source, std::size_t bytes, const CopyOptions& options) {
    check_generation();
    if (bytes == 0) return Transfer();
    check_regions(destination, source, bytes);
    const TransferKinds kinds = kinds_of(destination, source, bytes, options);
    const CopyDirection direction = direction_of(kinds.source, kinds.destination);
    const TransferPath path =
        options.path != TransferPath::automatic ? options.path : profile_.choose_path(bytes, 1, kinds);
    switch (path) {
      case TransferPath::staged: {
        StagingRing& ring = ring_for(direction, options);
        auto* const to = static_cast<std::byte*>(destination);
        auto* const from = static_cast<std::byte*>(const_cast<void*>(source));  // written by nobody
        const bool h2d = direction == CopyDirection::h2d;
        return staged(make_state(path, direction, bytes, 1, options), ring, h2d ? to : from, h2d ? from : to,
                      options);
      }
      case TransferPath::packed: {
        const TransferPiece piece{static_cast<const std::byte*>(source), static_cast<std::byte*>(destination),
                                  bytes};
        return packed({&piece, 1}, direction, options);
      }
      default: {
        // The driver itself moves pageable memory, and holds up its caller.
        const bool locked = kinds.source != MemoryKind::pageable && kinds.destination != MemoryKind::pageable;
        if (direction == CopyDirection::h2d && locked && !options.whole &&
            paths_for(options).paced.cuts(bytes)) {
          return paced(destination, source, bytes, options);
        }
        if (direction != CopyDirection::d2d && locked) {
          return in_turn(destination, source, bytes, direction, options);
        }
        const TransferPiece piece{static_cast<const std::byte*>(source), static_cast<std::byte*>(destination),
                                  bytes};
        return direct({&piece, 1}, direction, options);
      }
    }
  }

  Transfer fill(void* destination, std::size_t bytes, FillFunction fill, const FillOptions& options) {
    check_generation();
    if (!fill) throw InvalidArgument("a fill has no function; give one that writes the bytes");
    if (bytes == 0) return Transfer();
    if (destination == nullptr) {
      throw InvalidArgument(fmt::format("the destination of a fill of {} bytes is null", bytes));
    }
    if (kind_of_region(device_, destination, bytes) != MemoryKind::device) {
      throw InvalidArgument("the destination of a fill is host memory; write the bytes there yourself");
    }
    const CopyOptions common{.after = options.after, .timed = options.timed};
    std::vector<DeviceRun> whole{{static_cast<std::byte*>(destination), {0, bytes}}};
    return staged(make_state(TransferPath::staged, CopyDirection::h2d, bytes, 1, common),
                  paths_for(common).filled, std::move(whole), HostSide(std::move(fill)), common);
  }

  Transfer copy_pieces(std::span<const TransferPiece> pieces, CopyDirection direction,
                       const CopyOptions& options) {
    check_generation();
    const auto first = std::find_if(pieces.begin(), pieces.end(),
                                    [](const TransferPiece& piece) { return piece.bytes != 0; });
    if (first == pieces.end()) return Transfer();
    if (options.path == TransferPath::staged) return staged_pieces(pieces, direction, options);
    TransferPath path = options.path;
    if (path == TransferPath::automatic) {
      std::size_t bytes = 0;
      for (const TransferPiece& piece : pieces) bytes += piece.bytes;
      const TransferKinds kinds = first->source != nullptr && first->destination != nullptr
                                      ? kinds_of(first->destination, first->source, first->bytes, options)
                                      : TransferKinds{};
      path = profile_.choose_path(bytes, pieces.size(), kinds) == TransferPath::direct ? TransferPath::direct
                                                                                       : TransferPath::packed;
    }
    return path == TransferPath::direct ? direct(pieces, direction, options)
                                        : packed(pieces, direction, options);
  }

  [[nodiscard]] const LinkProfile& profile() const noexcept { return profile_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] unsigned threads() const noexcept { return threads_; }
  [[nodiscard]] bool is_forked() const noexcept { return generation_ != fork_generation(); }

 private:
  /// The streams and rings that carry transfers out. Transfers that come after a stream have their own set,
  /// so that the user's work on the stream does not hold up others.
  struct PathSet {
    PathSet(const Device& device, const std::shared_ptr<HostWorkers>& workers,
            const std::shared_ptr<Pool>& pinned, const std::shared_ptr<Pool>& scratch,
            const std::shared_ptr<EventPool>& events, unsigned threads, unsigned fill_threads,
            const TransferOptions& options, const LinkProfile& profile)
        : h2d(device),
          d2h(device),
          d2d(device.create_stream()),
          paced(device, events),
          packed(device, workers, pinned, scratch, events, d2h.streams()[0],
                 packing_options(device, fill_threads, options)),
          staged_h2d(device, workers, pinned, events, CopyDirection::h2d, h2d,
                     staging_options(device, CopyDirection::h2d, threads, options, profile)),
          staged_d2h(device, workers, pinned, events, CopyDirection::d2h, d2h,
                     staging_options(device, CopyDirection::d2h, threads, options, profile)),
          filled(device, workers, pinned, events, CopyDirection::h2d, h2d,
                 staging_options(device, CopyDirection::h2d, fill_threads, options, profile)) {}
    ~PathSet() {
      const std::array<Stream, 2>&to = h2d.streams(), &from = d2h.streams();
      for (const Stream* stream : {&to[0], &to[1], &from[0], &from[1], &d2d}) {
        try {
          stream->synchronize();
        } catch (const std::exception& error) {
          log_warning(error.what());
        }
      }
    }
    PathSet(const PathSet&) = delete;
    PathSet& operator=(const PathSet&) = delete;

    [[nodiscard]] const Stream& stream(CopyDirection direction) const {
      if (direction == CopyDirection::d2d) return d2d;
      return (direction == CopyDirection::h2d ? h2d : d2h).streams()[0];
    }

    CopyLane h2d;
    CopyLane d2h;
    const Stream d2d;
    PacedCopier paced;
    PackedCopier packed;
    StagingRing staged_h2d;
    StagingRing staged_d2h;
    StagingRing filled;
  };

  void check_generation() const {
    if (is_forked()) {
      throw DeviceError(
          "PENSTOCK_FORKED", "a transfer", 0,
          "This process was forked after the engine was made: open devices after the fork, or start "
          "processes by spawn.");
    }
  }

  [[nodiscard]] TransferKinds kinds_of(const void* destination, const void* source, std::size_t bytes,
                                       const CopyOptions& options) const {
    return {
        options.source_kind ? *options.source_kind : kind_of_region(device_, source, bytes),
        options.destination_kind ? *options.destination_kind : kind_of_region(device_, destination, bytes)};
  }

  [[nodiscard]] EventPool::Handle mark(const Stream* after) {
    if (after == nullptr) return {nullptr, {}};
    auto event = events_->take();
    event->record(*after);
    return event;
  }

  [[nodiscard]] PathSet& paths_for(const CopyOptions& options) {
    return options.after == nullptr ? free_ : ordered_;
  }

  /// The stream for a transfer. It waits for the work that the transfer comes after.
  [[nodiscard]] const Stream& stream_for(CopyDirection direction, const CopyOptions& options) {
    const Stream& stream = paths_for(options).stream(direction);
    if (options.after != nullptr) stream.wait(*mark(options.after));
    return stream;
  }

  [[nodiscard]] std::shared_ptr<TransferState> make_state(TransferPath path, CopyDirection direction,
                                                          std::size_t bytes, std::size_t pieces,
                                                          const CopyOptions& options) const {
    auto state = std::make_shared<TransferState>(path, direction, bytes, pieces);
    if (options.timed) state->timed_events = timed_events_;
    state->whole = options.whole;
    return state;
  }

  [[nodiscard]] StagingRing& ring_for(CopyDirection direction, const CopyOptions& options) {
    if (direction == CopyDirection::d2d) throw InvalidArgument("D2D has no staged path; use direct");
    PathSet& set = paths_for(options);
    return direction == CopyDirection::h2d ? set.staged_h2d : set.staged_d2h;
  }

  /// The ends are what StagingRing::submit takes.
  template <typename OnDevice, typename OnHost>
  Transfer staged(const std::shared_ptr<TransferState>& state, StagingRing& ring, OnDevice on_device,
                  OnHost on_host, const CopyOptions& options) {
    try {
      ring.submit(state, std::move(on_device), std::move(on_host), mark(options.after));
    } catch (...) {
      state->fail(std::current_exception());
    }
    return Transfer(state);
  }

  Transfer staged_pieces(std::span<const TransferPiece> pieces, CopyDirection direction,
                         const CopyOptions& options) {
    StagingRing& ring = ring_for(direction, options);
    const auto plan = std::make_shared<const PackedPlan>(pieces, direction, 0);
    const auto move = [plan, direction, stores = ring.stores()](std::size_t offset,
                                                                std::span<std::byte> staged) {
      const ImageRange range{offset, offset + staged.size()};
      if (direction == CopyDirection::h2d) {
        plan->pack(range, staged.data(), stores);
      } else {
        plan->unpack(range, staged.data(), stores);
      }
    };
    const auto state =
        make_state(TransferPath::staged, direction, plan->payload_bytes(), pieces.size(), options);
    if (direction == CopyDirection::h2d) return staged(state, ring, plan->runs(), move, options);
    // Sources that adjoin may be allocations of their own, and a copy of the driver stays within one.
    std::vector<DeviceRun> sources;
    for (std::size_t i = 0; i < plan->pieces().size(); ++i) {
      const TransferPiece& piece = plan->pieces()[i];
      sources.push_back(
          {const_cast<std::byte*>(piece.source), {plan->offset(i), plan->offset(i) + piece.bytes}});
    }
    return staged(state, ring, std::move(sources), move, options);
  }

  Transfer paced(void* destination, const void* source, std::size_t bytes, const CopyOptions& options) {
    const auto state = make_state(TransferPath::direct, CopyDirection::h2d, bytes, 1, options);
    try {
      paths_for(options).paced.submit(state, static_cast<std::byte*>(destination),
                                      static_cast<const std::byte*>(source), mark(options.after));
    } catch (...) {
      state->fail(std::current_exception());
    }
    return Transfer(state);
  }

  /// One copy between the device and locked memory.
  Transfer in_turn(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
                   const CopyOptions& options) {
    const auto state = make_state(TransferPath::direct, direction, bytes, 1, options);
    const EventPool::Handle after = mark(options.after);
    CopyLane& lane = direction == CopyDirection::h2d ? paths_for(options).h2d : paths_for(options).d2h;
    try {
      auto end = state->take_end(*events_);
      const auto copy = [&](const Stream& stream) {
        if (after) stream.wait(*after);
        state->begin_on(stream);
        stream.copy(destination, source, bytes, direction);
        end->record(stream);
      };
      lane.enqueue(bytes, copy, options.whole);
      state->account(1, 0, 0);
      state->submitted(std::move(end), false);
    } catch (...) {
      lane.drain();
      state->fail(std::current_exception());
    }
    return Transfer(state);
  }

  Transfer direct(std::span<const TransferPiece> pieces, CopyDirection direction,
                  const CopyOptions& options) {
    std::size_t bytes = 0;
    for (const TransferPiece& piece : pieces) {
      if (piece.bytes != 0) check_regions(piece.destination, piece.source, piece.bytes);
      bytes += piece.bytes;
    }
    const auto state = make_state(TransferPath::direct, direction, bytes, pieces.size(), options);
    const Stream& stream = stream_for(direction, options);
    try {
      state->begin_on(stream);
      for (const TransferPiece& piece : pieces) {
        if (piece.bytes == 0) continue;
        stream.copy(piece.destination, piece.source, piece.bytes, direction);
      }
      auto event = state->take_end(*events_);
      event->record(stream);
      state->account(pieces.size(), 0, 0);
      state->submitted(std::move(event), false);
    } catch (...) {
      state->fail_after(stream, std::current_exception());
    }
    return Transfer(state);
  }

  Transfer packed(std::span<const TransferPiece> pieces, CopyDirection direction,
                  const CopyOptions& options) {
    PackedPlan plan(pieces, direction, device_.info().tuning.packing.shortest_run_bytes);
    const auto state =
        make_state(TransferPath::packed, direction, plan.payload_bytes(), pieces.size(), options);
    switch (direction) {
      case CopyDirection::h2d:
        paths_for(options).packed.to_device(state, plan, paths_for(options).h2d.streams(),
                                            mark(options.after));
        break;
      case CopyDirection::d2h:
        paths_for(options).packed.to_host(state, std::move(plan), mark(options.after));
        break;
      case CopyDirection::d2d:
        paths_for(options).packed.on_device(state, plan, stream_for(direction, options));
        break;
    }
    return Transfer(state);
  }

  const Device device_;
  const LinkProfile profile_;
  const std::shared_ptr<HostWorkers> workers_;
  const unsigned threads_;
  const unsigned fill_threads_;
  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<EventPool> timed_events_;
  const std::shared_ptr<Pool> pinned_;
  const std::shared_ptr<Pool> scratch_;
  PathSet free_;
  PathSet ordered_;
};

TransferEngine::TransferEngine(Device device, TransferOptions options) {
  check_options(options);
  impl_ = std::make_unique<TransferEngineImpl>(std::move(device), std::move(options));
}

TransferEngine::~TransferEngine() {
  // In a child, the threads are the parent's, and a lock may guard something half-changed: nothing can be
  // torn down.
  if (impl_ && impl_->is_forked()) static_cast<void>(impl_.release());
}

Transfer TransferEngine::copy(void* destination, const void* source, std::size_t bytes,
                              const CopyOptions& options) {
  return impl_->copy(destination, source, bytes, options);
}

Transfer TransferEngine::copy_pieces(std::span<const TransferPiece> pieces, CopyDirection direction,
                                     const CopyOptions& options) {
  return impl_->copy_pieces(pieces, direction, options);
}

Transfer TransferEngine::fill(void* destination, std::size_t bytes, FillFunction fill,
                              const FillOptions& options) {
  return impl_->fill(destination, bytes, std::move(fill), options);
}

const LinkProfile& TransferEngine::profile() const noexcept { return impl_->profile(); }

const Device& TransferEngine::device() const noexcept { return impl_->device(); }

unsigned TransferEngine::threads() const noexcept { return impl_->threads(); }

}  // namespace penstock
