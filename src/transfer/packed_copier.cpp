#include "transfer/packed_copier.hpp"

#include "core/shared/start_thread.hpp"
#include "core/shared/wait_quietly.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRoundsInFlight = 3;
// Largest image that one thread packs alone. Waking another takes some 70 µs: the copying of about 800 KiB.
constexpr std::size_t kAlone = std::size_t{512} << 10;

/// Memory that goes back to its pool once the work that is on the stream at the end of the scope is done.
class StreamBuffer {
 public:
  StreamBuffer(Buffer buffer, const Stream& stream) : buffer_(std::move(buffer)), stream_(stream) {}
  ~StreamBuffer() {
    try {
      if (!buffer_.empty()) buffer_.release_after(stream_);
    } catch (const std::exception& error) {  // the pool keeps the memory out of use
      log_warning(error.what());
    }
  }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return buffer_.data(); }

 private:
  Buffer buffer_;
  const Stream& stream_;
};

/// Cuts a round into chunks, small ones first.
std::vector<ImageRange> chunks_of(ImageRange round, const PackingOptions& options) {
  std::vector<ImageRange> chunks;
  std::size_t size = options.tuning.first_chunk_bytes;
  for (std::size_t begin = round.begin; begin < round.end;) {
    const std::size_t end = round.end - begin <= size + size / 2 ? round.end : begin + size;
    chunks.push_back({begin, end});
    begin = end;
    size = std::min(size * 2, options.tuning.largest_chunk_bytes);
  }
  return chunks;
}

}  // namespace

PackedCopier::PackedCopier(Device device, std::shared_ptr<HostWorkers> workers, std::shared_ptr<Pool> pinned,
                           std::shared_ptr<Pool> scratch, std::shared_ptr<EventPool> events,
                           const Stream& unpack_stream, PackingOptions options)
    : device_(std::move(device)),
      workers_(std::move(workers)),
      pinned_(std::move(pinned)),
      scratch_(std::move(scratch)),
      events_(std::move(events)),
      options_(options),
      unpack_stream_(unpack_stream) {}

PackedCopier::~PackedCopier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (unpacker_.joinable()) unpacker_.join();
}

unsigned PackedCopier::threads_for(const PackedPlan& plan) const noexcept {
  return plan.image_bytes() <= kAlone ? 1 : options_.threads;
}

void PackedCopier::for_each_granule(const PackedPlan& plan, ImageRange range,
                                    FunctionRef<void(ImageRange)> body) {
  const std::size_t granule = options_.granule_bytes;
  const std::size_t granules = (range.bytes() + granule - 1) / granule;
  const auto one = [&](std::size_t i) {
    const std::size_t begin = range.begin + i * granule;
    body({begin, std::min(begin + granule, range.end)});
  };
  workers_->for_each(granules, one, threads_for(plan));
}

void PackedCopier::run_kernel(const PackedPlan& plan, ImageRange round, CopyDirection direction,
                              std::byte* scratch, const Stream& stream) {
  std::vector<CopyPiece> table;
  const bool on_device = scratch == nullptr;
  for (std::size_t i = on_device ? 0 : plan.first_piece(round.begin); i < plan.pieces().size(); ++i) {
    const TransferPiece& piece = plan.pieces()[i];
    if (on_device) {
      table.push_back({piece.source, piece.destination, piece.bytes});
      continue;
    }
    if (plan.offset(i) >= round.end) break;
    std::byte* image = scratch + (plan.offset(i) - round.begin);
    table.push_back(direction == CopyDirection::h2d ? CopyPiece{image, piece.destination, piece.bytes}
                                                    : CopyPiece{piece.source, image, piece.bytes});
  }
  const StreamBuffer pinned(pinned_->allocate_wait(table.size() * sizeof(CopyPiece)), stream);
  std::copy(table.begin(), table.end(), reinterpret_cast<CopyPiece*>(pinned.data()));
  stream.copy_pieces(static_cast<const CopyPiece*>(device_.device_address(pinned.data())), table.size());
}

void PackedCopier::pack_round(const PackedPlan& plan, ImageRange round, const Stream& stream,
                              TransferState& state) {
  const bool scatter = plan.device_side() == PackedPlan::DeviceSide::scatter;
  const StreamBuffer scratch(scatter ? scratch_->allocate_wait(round.bytes()) : Buffer(), stream);
  const StreamBuffer pinned(pinned_->allocate_wait(round.bytes()), stream);

  const std::vector<ImageRange> chunks = chunks_of(round, options_);
  std::vector<std::atomic<std::size_t>> left_to_pack(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i)
    left_to_pack[i].store(chunks[i].bytes(), std::memory_order_relaxed);
  std::atomic<std::size_t> copies{0};

  const auto enqueue = [&](ImageRange chunk) {
    state.begin_on(stream);
    if (scatter) {
      stream.copy(scratch.data() + (chunk.begin - round.begin), pinned.data() + (chunk.begin - round.begin),
                  chunk.bytes(), CopyDirection::h2d);
      copies.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    for_each_run(plan.runs(), chunk, [&](std::byte* device, std::size_t begin, std::size_t bytes) {
      stream.copy(device, pinned.data() + (begin - round.begin), bytes, CopyDirection::h2d);
      copies.fetch_add(1, std::memory_order_relaxed);
    });
  };
  const StoreKind stores = options_.tuning.streaming_stores ? StoreKind::streaming : StoreKind::cached;
  const auto begin = Clock::now();
  for_each_granule(plan, round, [&](ImageRange granule) {
    plan.pack(granule, pinned.data() + (granule.begin - round.begin), stores);
    // The thread that packs the last byte of a chunk sends it.
    auto chunk = std::upper_bound(chunks.begin(), chunks.end(), granule.begin,
                                  [](std::size_t at, const ImageRange& range) { return at < range.begin; }) -
                 1;
    while (granule.begin < granule.end) {
      const std::size_t part = std::min(granule.end, chunk->end) - granule.begin;
      auto& left = left_to_pack[static_cast<std::size_t>(chunk - chunks.begin())];
      if (left.fetch_sub(part, std::memory_order_acq_rel) == part) enqueue(*chunk);
      granule.begin += part;
      ++chunk;
    }
  });
  if (scatter) run_kernel(plan, round, CopyDirection::h2d, scratch.data(), stream);
  state.account(copies.load(), seconds_since(begin), 0);
}

void PackedCopier::to_device(const std::shared_ptr<TransferState>& state, const PackedPlan& plan,
                             const std::array<Stream, 2>& streams, EventPool::Handle after) {
  state->set_threads(threads_for(plan));
  try {
    if (after) streams[0].wait(*after);
    std::deque<EventPool::Handle> rounds;  // in flight
    std::size_t turn = 0;
    for (std::size_t begin = 0; begin < plan.image_bytes();) {
      // The next round then reuses memory that is in the cache.
      if (!after && rounds.size() == kRoundsInFlight) {
        rounds.front()->synchronize();
        rounds.pop_front();
      }
      const ImageRange round = plan.round(begin, options_.tuning.window_bytes);
      const Stream& stream = streams[turn];
      if (!rounds.empty()) stream.wait(*rounds.back());
      pack_round(plan, round, stream, *state);
      rounds.push_back(state->take_end(*events_));
      rounds.back()->record(stream);
      begin = round.end;
      if (!state->whole) turn = 1 - turn;
    }
    state->submitted(std::move(rounds.back()), false);
  } catch (...) {
    static_cast<void>(wait_quietly([&] { streams[1].synchronize(); }));
    state->fail_after(streams[0], std::current_exception());
  }
}

void PackedCopier::on_device(const std::shared_ptr<TransferState>& state, const PackedPlan& plan,
                             const Stream& stream) {
  try {
    state->begin_on(stream);
    run_kernel(plan, {}, CopyDirection::d2d, nullptr, stream);
    auto event = state->take_end(*events_);
    event->record(stream);
    state->account(1, 0, 0);
    state->submitted(std::move(event), false);
  } catch (...) {
    state->fail_after(stream, std::current_exception());
  }
}

/// A packed D2H transfer. The one thread that claims it enqueues its copies round by round, and moves the
/// bytes from pinned memory to the host's ends as they arrive.
class PackedCopier::Unpacking {
 public:
  Unpacking(PackedCopier& copier, std::shared_ptr<TransferState> state, PackedPlan plan,
            EventPool::Handle after)
      : copier_(copier), state_(std::move(state)), plan_(std::move(plan)), after_(std::move(after)) {}

  /// Enqueues the first round.
  void begin() {
    try {
      if (after_) copier_.unpack_stream_.wait(*after_);
      static_cast<void>(next_round());
      enqueue_round();
    } catch (...) {
      fail();
    }
  }

  /// Does the rest, unless another thread has begun it.
  bool try_run() {
    if (claimed_.exchange(true)) return false;
    if (!failed_) run();
    ended_.store(true);
    ended_.notify_all();
    return true;
  }

  void wait_ended() const { ended_.wait(false); }

  /// True if rounds were left, which will then not be made.
  bool cancel() {
    const std::lock_guard lock(round_mutex_);
    if (failed_ || round_.end == plan_.image_bytes()) return false;
    cancelled_ = true;
    return true;
  }

 private:
  struct Arriving {
    ImageRange chunk;
    EventPool::Handle event;
  };

  void run() {
    try {
      for (;;) {
        for (Arriving& chunk : arriving_) take_out(chunk);
        pinned_.release();
        if (round_.end == plan_.image_bytes()) return state_->finish();
        if (!next_round()) return state_->cancelled();
        enqueue_round();
      }
    } catch (...) {
      fail();
    }
  }

  /// Goes on to the next round, unless the transfer was cancelled before it.
  [[nodiscard]] bool next_round() {
    const std::lock_guard lock(round_mutex_);
    if (!cancelled_) round_ = plan_.round(round_.end, copier_.options_.tuning.window_bytes);
    return !cancelled_;
  }

  void enqueue_round() {
    const ImageRange round = round_;
    const Stream& stream = copier_.unpack_stream_;
    const bool scatter = plan_.device_side() == PackedPlan::DeviceSide::scatter;
    const StreamBuffer scratch(scatter ? copier_.scratch_->allocate_wait(round.bytes()) : Buffer(), stream);
    pinned_ = copier_.pinned_->allocate_wait(round.bytes());
    arriving_.clear();
    state_->begin_on(stream);
    if (scatter) copier_.run_kernel(plan_, round, CopyDirection::d2h, scratch.data(), stream);
    for (const ImageRange chunk : chunks_of(round, copier_.options_)) {
      if (scatter) {
        stream.copy(pinned_.data() + (chunk.begin - round.begin),
                    scratch.data() + (chunk.begin - round.begin), chunk.bytes(), CopyDirection::d2h);
        ++copies_;
      } else {
        for_each_run(plan_.runs(), chunk, [&](std::byte* device, std::size_t at, std::size_t bytes) {
          stream.copy(pinned_.data() + (at - round.begin), device, bytes, CopyDirection::d2h);
          ++copies_;
        });
      }
      arriving_.push_back({chunk, copier_.events_->take()});
      arriving_.back().event->record(stream);
    }
    if (round.end == plan_.image_bytes()) {
      auto event = state_->take_end(*copier_.events_);
      event->record(stream);
      state_->submitted(std::move(event), true);
    }
  }

  void take_out(Arriving& arriving) {
    const auto begin = Clock::now();
    arriving.event->synchronize();
    const double waited = seconds_since(begin);
    copier_.for_each_granule(plan_, arriving.chunk, [&](ImageRange granule) {
      plan_.unpack(granule, pinned_.data() + (granule.begin - round_.begin), StoreKind::cached);
    });
    state_->account(std::exchange(copies_, 0), seconds_since(begin) - waited, waited);
  }

  void fail() {
    {
      const std::lock_guard lock(round_mutex_);
      failed_ = true;
    }
    const StreamBuffer pinned(std::move(pinned_), copier_.unpack_stream_);
    state_->fail_after(copier_.unpack_stream_, std::current_exception());
  }

  PackedCopier& copier_;
  const std::shared_ptr<TransferState> state_;
  const PackedPlan plan_;
  const EventPool::Handle after_;
  Buffer pinned_;
  std::vector<Arriving> arriving_;
  std::size_t copies_ = 0;
  std::atomic<bool> claimed_{false};
  std::atomic<bool> ended_{false};

  std::mutex round_mutex_;  // taken by the thread that runs it, and by those that cancel it
  ImageRange round_;
  bool failed_ = false;
  bool cancelled_ = false;
};

void PackedCopier::to_host(const std::shared_ptr<TransferState>& state, PackedPlan plan,
                           EventPool::Handle after) {
  state->set_threads(threads_for(plan));
  const auto job = std::make_shared<Unpacking>(*this, state, std::move(plan), std::move(after));
  job->begin();
  state->on_cancel = [weak = std::weak_ptr(job)] {
    const auto alive = weak.lock();
    return alive && alive->cancel();
  };
  state->help = [weak = std::weak_ptr(job)] {
    const auto alive = weak.lock();
    if (alive) alive->try_run();
  };
  {
    const std::lock_guard lock(mutex_);
    if (!unpacker_.joinable()) unpacker_ = start_thread("penstock-unpack", [this] { run_unpacker(); });
    queue_.push_back(job);
  }
  changed_.notify_one();
}

void PackedCopier::run_unpacker() {
  bind_thread_to_node(device_.info().numa_node);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!job->try_run()) job->wait_ended();  // the copier must outlive the thread that does the work
    lock.lock();
  }
}

}  // namespace penstock
