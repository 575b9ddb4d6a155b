#include "device/host/host_stream.hpp"

#include "core/shared/start_thread.hpp"
#include "device/hash_word.hpp"
#include "device/host/gather.hpp"
#include "device/host/host_event.hpp"
#include "device/host/split.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

namespace penstock {

namespace {

/// Moves the bytes [begin, end) of a copy.
void move_part(const CopyWork& work, std::size_t begin, std::size_t end) noexcept {
  std::memcpy(static_cast<std::byte*>(work.destination) + begin,
              static_cast<const std::byte*>(work.source) + begin, end - begin);
}

/// Moves the bytes of a copy over a modelled link, which ends at `arrival`. A part of them goes then, the
/// rest at once, so that a forgotten wait gives wrong bytes. Each direction has another part: a copy that
/// should have waited for one of another direction reads too early what that one writes late.
void move_until(const CopyWork& work, Wire::Clock::time_point arrival) noexcept {
  const std::size_t late = std::min((work.bytes + 3) / 4, 4 * kKiB);
  const std::size_t begin = work.direction == CopyDirection::h2d   ? 0
                            : work.direction == CopyDirection::d2h ? work.bytes - late
                                                                   : (work.bytes - late) / 2;
  move_part(work, 0, begin);
  move_part(work, begin + late, work.bytes);
  wait_until(arrival);
  move_part(work, begin, begin + late);
}

/// Takes the turns of `bytes` on all of `wires` at once. Returns the time at which they will have arrived, or
/// nothing if no wire is modelled.
std::optional<Wire::Clock::time_point> take_turns(const Wires& wires, std::size_t bytes) noexcept {
  std::optional<Wire::Clock::time_point> arrival;
  for (Wire* const wire : wires) {
    if (wire != nullptr && wire->modelled()) {
      arrival = std::max(arrival.value_or(Wire::Clock::time_point::min()), wire->take_turn(bytes));
    }
  }
  return arrival;
}

}  // namespace

void HostCore::for_each_live(FunctionRef<void(const std::shared_ptr<HostStream>&)> visit) noexcept {
  for (std::size_t left = std::numeric_limits<std::size_t>::max(); left > 0;) {
    std::shared_ptr<HostStream> stream;
    {
      const std::lock_guard lock(streams_mutex);
      left = std::min(left, streams.size());
      // Down, since `add` moves streams to lower places meanwhile.
      while (left > 0 && stream == nullptr) stream = streams[--left].lock();
    }
    if (stream != nullptr) visit(stream);
  }
}

void HostCore::add(const std::shared_ptr<HostStream>& stream) {
  const std::lock_guard lock(streams_mutex);
  std::erase_if(streams, [](const std::weak_ptr<HostStream>& other) { return other.expired(); });
  streams.push_back(stream);
}

std::shared_ptr<HostStream> HostStream::start(std::shared_ptr<HostCore> core) {
  auto stream = std::make_shared<HostStream>(std::move(core));
  stream->core_->add(stream);
  start_thread("penstock-stream", [stream] { stream->run(); }).detach();
  return stream;
}

std::uint64_t HostStream::enqueue(const Work& work) {
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(enqueue_mutex_);
    ticket = queue_.push(work);
  }
  if (!core_->late) work_bell_.ring();
  return ticket;
}

void HostStream::end() noexcept {
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(enqueue_mutex_);
    ticket = queue_.push_last(EndWork{});
  }
  need(ticket);
  work_bell_.ring();
}

bool HostStream::query() noexcept {
  const std::uint64_t ticket = newest();
  if (done(ticket)) {
    queries_.store(0, std::memory_order_relaxed);
    return true;
  }
  if (queries_.fetch_add(1, std::memory_order_relaxed) + 1 >= kPatience) need(ticket);
  return false;
}

void HostStream::need(std::uint64_t ticket) noexcept {
  if (!core_->late) return;
  std::uint64_t needed = needed_.load(std::memory_order_relaxed);
  while (needed < ticket && !needed_.compare_exchange_weak(needed, ticket, std::memory_order_relaxed)) {
  }
  work_bell_.ring();
}

void HostStream::wait(std::uint64_t ticket) noexcept {
  need(ticket);
  progress_bell_.wait([&] { return done(ticket); }, core_->spin);
}

void HostStream::wait_for(const EventMark& mark, std::uint64_t ticket) noexcept {
  need(ticket);
  progress_bell_.wait([&] { return mark.done.load(std::memory_order_acquire) >= ticket; }, core_->spin);
}

std::uint64_t HostStream::runnable() const noexcept {
  const std::uint64_t newest_ticket = queue_.pushed();
  return core_->late ? std::min(newest_ticket, needed_.load(std::memory_order_relaxed)) : newest_ticket;
}

void HostStream::run() noexcept {
  bool ended = false;
  for (std::uint64_t ticket = 1; !ended; ++ticket) {
    work_bell_.wait([&] { return ticket <= runnable(); }, core_->spin);
    const Work work = queue_.pop();
    ended = std::holds_alternative<EndWork>(work);
    std::visit([&](const auto& one) { perform(one, ticket); }, work);
    completed_.store(ticket, std::memory_order_release);
    progress_bell_.ring();
  }
}

void HostStream::perform(const CopyWork& work, std::uint64_t /*ticket*/) {
  if (!abandoned_) {
    if (const auto arrival = take_turns(work.wires, work.bytes)) {
      move_until(work, *arrival);
    } else {
      move_part(work, 0, work.bytes);
    }
  }
  delete[] work.staged;
}

void HostStream::perform(const FillWork& work, std::uint64_t /*ticket*/) {
  if (!abandoned_) std::memset(work.destination, work.value, work.bytes);
}

void HostStream::perform(const PiecesWork& work, std::uint64_t /*ticket*/) {
  if (abandoned_) return;
  std::size_t to_device = 0;
  std::size_t to_host = 0;
  if (!core_->memory.reaches({work.pieces, work.count}, to_device, to_host)) {
    core_->illegal_address.store(true, std::memory_order_relaxed);
    return;
  }
  const bool reads = to_device != 0 && core_->to_device.modelled();
  const bool writes = to_host != 0 && core_->to_host.modelled();
  const auto read = reads ? core_->to_device.take_turn(to_device) : Wire::Clock::time_point{};
  const auto written = writes ? core_->to_host.take_turn(to_host) : Wire::Clock::time_point{};
  for (std::size_t i = work.count; i-- > 0;) {
    if (i == 0 && (reads || writes)) wait_until(std::max(read, written));
    const CopyPiece& piece = work.pieces[i];
    if (piece.bytes != 0) std::memcpy(piece.destination, piece.source, piece.bytes);
  }
}

void HostStream::perform(const GatherWork& work, std::uint64_t /*ticket*/) {
  if (abandoned_) return;
  const GatherRequest& request = work.request;
  std::uint64_t link_bytes = 0;
  if (core_->to_device.modelled() && (work.head_on_link || work.source_on_link)) {
    link_bytes = count_rows(request, work.head_on_link, work.source_on_link) * request.row_elements *
                 dtype_bytes(request.from);
  }
  const bool on_link = link_bytes != 0;
  const auto arrival = on_link ? core_->to_device.take_turn(link_bytes) : Wire::Clock::time_point{};
  gather_on_host(request, 1, request.count);
  if (on_link) wait_until(arrival);
  gather_on_host(request, 0, 1);
}

void HostStream::perform(const SplitWork& work, std::uint64_t /*ticket*/) {
  if (abandoned_) return;
  const SplitRequest& request = work.request;
  const auto writable = [&](const void* data, std::uint64_t bytes) {
    const RangeKind kind = core_->memory.kind_of(data, bytes);
    return is_device_accessible(kind.kind) && kind.whole && kind.writable;
  };
  if (!split_stays_inside(request, writable)) {
    core_->illegal_address.store(true, std::memory_order_relaxed);
    return;
  }
  const bool on_link = work.rows_on_link && core_->to_device.modelled();
  const auto arrival =
      on_link ? core_->to_device.take_turn(request.count * request.row_bytes) : Wire::Clock::time_point{};
  split_on_host(request);
  if (on_link) wait_until(arrival);
}

void HostStream::perform(const OrderWork& work, std::uint64_t /*ticket*/) {
  const OrderRequest& request = work.request;
  if (!abandoned_) request.run.fill({request.indices, request.run.count});
}

void HostStream::perform(const HashWork& work, std::uint64_t /*ticket*/) {
  if (abandoned_) return;
  const HashRequest& request = work.request;
  HashSum sum;
  for (std::uint64_t at = 0; at < request.bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(request.source) + at,
                std::min<std::uint64_t>(sizeof word, request.bytes - at));
    hash_word(at / sizeof word, word, sum.low, sum.high);
  }
  std::fill_n(request.sums, HashRequest::sum_count(request.bytes), HashSum{});
  request.sums[0] = sum;
}

void HostStream::perform(const RecordWork& work, std::uint64_t ticket) {
  work.mark->time.store(Wire::Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  work.mark->done.store(ticket, std::memory_order_release);
  work.event->release();
}

void HostStream::perform(const WaitEventWork& work, std::uint64_t /*ticket*/) {
  work.mark->stream->wait_for(*work.mark, work.ticket);
  work.event->release();
}

void HostStream::perform(const WaitValueWork& work, std::uint64_t /*ticket*/) {
  if (abandoned_) return;
  const auto open = [&] {
    const std::uint32_t now = __atomic_load_n(work.word, __ATOMIC_ACQUIRE);
    return static_cast<std::int32_t>(now - work.value) >= 0;
  };
  while (!spin_until(open, std::chrono::microseconds(200))) {
    if (core_->closing.load(std::memory_order_relaxed)) {
      abandoned_ = true;
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void HostStream::perform(const OccupyWork& work, std::uint64_t /*ticket*/) {
  if (!abandoned_) wait_until(Wire::Clock::now() + work.time);
}

void HostStream::perform(const EndWork& /*work*/, std::uint64_t /*ticket*/) {}

}  // namespace penstock
