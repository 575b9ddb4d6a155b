#include "data/async_reads.hpp"

#include <penstock/core/bytes.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kPartBytes = std::size_t{256} << 10;  // of one read
constexpr std::size_t kMergedBytes = std::size_t{64} << 10;
constexpr std::size_t kBufferBytes = kPartBytes + BlockRead::kSpareBytes;
// Of a thread. A disk reads 32 samples of 150 KB together as fast as it can, and needs 128 of 4 KiB.
constexpr std::size_t kMostUnderWay = std::size_t{6} << 20;

long get_events(aio_context_t context, long least, long most, io_event* events) {
  return ::syscall(SYS_io_getevents, context, least, most, events, nullptr);
}

std::atomic<AsyncReads::GetEvents> used_get_events{get_events};

}  // namespace

void AsyncReads::stand_in(GetEvents events) noexcept {
  used_get_events = events == nullptr ? get_events : events;
}

AsyncReads& AsyncReads::of_thread() {
  thread_local std::unique_ptr<AsyncReads> reads;
  if (reads == nullptr || reads->generation_ != fork_generation()) reads = std::make_unique<AsyncReads>();
  reads->wanted_.clear();
  return *reads;
}

AsyncReads::AsyncReads() : buffers_(kMost * kBufferBytes) {
  if (::syscall(SYS_io_setup, kMost, &context_) != 0) context_ = 0;
  for (std::size_t slot = 0; slot < kMost; ++slot) free_.push_back(slot);
}

AsyncReads::~AsyncReads() {
  if (context_ != 0) ::syscall(SYS_io_destroy, context_);
}

void AsyncReads::want(DirectFile& file, FilePiece piece, std::size_t sample) {
  while (!piece.destination.empty()) {
    // Parts end where a block does: no block is read twice.
    const std::size_t most = kPartBytes - static_cast<std::size_t>(piece.offset % file.block_bytes());
    const std::size_t bytes = std::min(most, piece.destination.size());
    wanted_.push_back({&file, {piece.offset, piece.destination.first(bytes)}, sample});
    piece = {piece.offset + bytes, piece.destination.subspan(bytes)};
  }
}

std::span<const std::size_t> AsyncReads::read(FunctionRef<void()> meanwhile) {
  struct AllEnd {  // also if `meanwhile` throws: the reads write to their destinations
    ~AllEnd() {
      while (reads.free_.size() < kMost) reads.wait();
      reads.wanted_.clear();
    }
    AsyncReads& reads;
  } const all_end{*this};
  make_parts();
  begin_some();
  meanwhile();
  while (next_ < parts_.size() || free_.size() < kMost) {
    wait();
    begin_some();
  }
  return failed_;
}

void AsyncReads::make_parts() {
  std::ranges::sort(wanted_, {}, [](const Wanted& one) { return std::pair(one.file, one.piece.offset); });
  pieces_.clear();
  parts_.clear();
  failed_.clear();
  failed_.reserve(wanted_.size());
  next_ = 0;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const FilePiece& piece = pieces_.emplace_back(wanted_[i].piece);
    Part* const last = parts_.empty() ? nullptr : &parts_.back();
    if (last != nullptr && wanted_[last->first].file == wanted_[i].file) {
      const std::uint64_t begin = pieces_[last->first].offset;
      const std::uint64_t end = std::max(begin + last->bytes, piece.offset + piece.destination.size());
      const bool touches = piece.offset <= align_up(begin + last->bytes, wanted_[i].file->block_bytes());
      if (touches && end - begin <= kMergedBytes) {
        *last = {last->first, last->count + 1, static_cast<std::size_t>(end - begin)};
        continue;
      }
    }
    parts_.push_back({i, 1, piece.destination.size()});
  }
}

void AsyncReads::begin_some() noexcept {
  std::array<iocb*, kMost> requests{};
  std::size_t count = 0;
  for (; next_ < parts_.size() && !free_.empty() && bytes_ < kMostUnderWay; ++next_) {
    const std::size_t number = free_.back();
    free_.pop_back();
    Slot& slot = slots_[number];
    slot.part = parts_[next_];
    const DirectFile& file = *wanted_[slot.part.first].file;
    slot.read = BlockRead(file, std::span(pieces_).subspan(slot.part.first, slot.part.count),
                          buffers_.bytes().subspan(number * kBufferBytes, kBufferBytes));
    slot.request = {};
    slot.request.aio_data = number;
    slot.request.aio_fildes = static_cast<std::uint32_t>(file.descriptor());
    slot.request.aio_lio_opcode = IOCB_CMD_PREADV;
    slot.request.aio_buf = reinterpret_cast<std::uintptr_t>(slot.read.places().data());
    slot.request.aio_nbytes = slot.read.places().size();
    slot.request.aio_offset = static_cast<std::int64_t>(slot.read.offset());
    bytes_ += slot.part.bytes;
    requests[count++] = &slot.request;
  }
  for (std::size_t done = 0; done < count;) {
    const long begun = ::syscall(SYS_io_submit, context_, count - done, requests.data() + done);
    if (begun <= 0) end(static_cast<std::size_t>(requests[done]->aio_data), 0);  // the first was refused
    done += static_cast<std::size_t>(std::max(begun, 1L));
  }
}

void AsyncReads::wait() noexcept {
  if (free_.size() == kMost) return;
  std::array<io_event, kMost> events;
  long got = 0;
  do {
    got = used_get_events.load()(context_, 1, kMost, events.data());
  } while (got < 0 && errno == EINTR);
  for (long i = 0; i < got; ++i)
    end(static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data),
        events[static_cast<std::size_t>(i)].res);
}

void AsyncReads::end(std::size_t number, std::int64_t got) noexcept {
  const Slot& slot = slots_[number];
  free_.push_back(number);
  bytes_ -= slot.part.bytes;
  if (slot.read.finish(static_cast<std::size_t>(std::max<std::int64_t>(got, 0))) == slot.part.bytes) return;
  if (got <= 0) wanted_[slot.part.first].file->refuse();
  for (std::size_t i = 0; i < slot.part.count; ++i) failed_.push_back(wanted_[slot.part.first + i].sample);
}

}  // namespace penstock
