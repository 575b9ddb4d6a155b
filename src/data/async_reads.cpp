#include "data/async_reads.hpp"

#include <penstock/core/bytes.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kPartBytes = std::size_t{256} << 10;  // of one read
constexpr std::size_t kMergedBytes = std::size_t{64} << 10;
constexpr std::size_t kBufferBytes = kPartBytes + BlockRead::kSpareBytes;
// Of a thread. A disk reads 32 samples of 150 KB together as fast as it can, and needs 128 of 4 KiB.
constexpr std::size_t kMostUnderWay = std::size_t{6} << 20;

std::atomic<const AsyncReads::Calls*> used_calls{&AsyncReads::kSystem};

}  // namespace

const AsyncReads::Calls AsyncReads::kSystem{
    .setup = [](std::size_t most, aio_context_t* context) { return ::syscall(SYS_io_setup, most, context); },
    .submit = [](aio_context_t context, long count,
                 iocb** requests) { return ::syscall(SYS_io_submit, context, count, requests); },
    .get_events =
        [](aio_context_t context, long least, long most, io_event* events) {
          return ::syscall(SYS_io_getevents, context, least, most, events, nullptr);
        }};

void AsyncReads::stand_in(const Calls& calls) noexcept { used_calls = &calls; }

AsyncReads::AsyncReads() : buffers_(kMost * kBufferBytes) {
  if (used_calls.load()->setup(kMost, &context_) != 0) context_ = 0;
  for (std::size_t slot = 0; slot < kMost; ++slot) free_.push_back(slot);
}

AsyncReads::~AsyncReads() {
  if (generation_ != fork_generation() || context_ == 0) return;
  drop();
  ::syscall(SYS_io_destroy, context_);
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

void AsyncReads::begin() {
  Batch& batch = batches_.emplace_back();
  batch.wanted.swap(wanted_);
  make_parts(batch);
  begin_some();
}

std::span<const std::size_t> AsyncReads::end(FunctionRef<void()> meanwhile) {
  Batch& batch = batches_.front();
  begin_some();
  meanwhile();
  while (batch.left > 0) {
    wait();
    begin_some();
  }
  failed_ = std::move(batch.failed);
  batches_.pop_front();
  return failed_;
}

void AsyncReads::drop() noexcept {
  while (free_.size() < kMost) wait();
  batches_.clear();
  wanted_.clear();
}

void AsyncReads::make_parts(Batch& batch) {
  std::vector<Wanted>& wanted = batch.wanted;
  std::vector<Part>& parts = batch.parts;
  std::ranges::sort(wanted, {}, [](const Wanted& one) { return std::pair(one.file, one.piece.offset); });
  batch.failed.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const FilePiece& piece = batch.pieces.emplace_back(wanted[i].piece);
    Part* const last = parts.empty() ? nullptr : &parts.back();
    if (last != nullptr && wanted[last->first].file == wanted[i].file) {
      const std::uint64_t begin = batch.pieces[last->first].offset;
      const std::uint64_t end = std::max(begin + last->bytes, piece.offset + piece.destination.size());
      const bool touches = piece.offset <= align_up(begin + last->bytes, wanted[i].file->block_bytes());
      if (touches && end - begin <= kMergedBytes) {
        *last = {last->first, last->count + 1, static_cast<std::size_t>(end - begin)};
        continue;
      }
    }
    parts.push_back({i, 1, piece.destination.size()});
  }
  batch.left = parts.size();
}

void AsyncReads::begin_some() noexcept {
  std::array<iocb*, kMost> requests{};
  std::size_t count = 0;
  for (Batch& batch : batches_) {
    while (batch.next < batch.parts.size() && !free_.empty() && bytes_ < kMostUnderWay) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      begin_part(batch, slot);
      requests[count++] = &slots_[slot].request;
    }
  }
  for (std::size_t done = 0; done < count;) {
    const long begun =
        used_calls.load()->submit(context_, static_cast<long>(count - done), requests.data() + done);
    if (begun <= 0) end_part(static_cast<std::size_t>(requests[done]->aio_data), 0);  // the first was refused
    done += static_cast<std::size_t>(std::max(begun, 1L));
  }
}

void AsyncReads::begin_part(Batch& batch, std::size_t number) {
  Slot& slot = slots_[number];
  slot.batch = &batch;
  slot.part = batch.parts[batch.next++];
  const DirectFile& file = *batch.wanted[slot.part.first].file;
  slot.read = BlockRead(file, std::span(batch.pieces).subspan(slot.part.first, slot.part.count),
                        buffers_.bytes().subspan(number * kBufferBytes, kBufferBytes));
  slot.request = {};
  slot.request.aio_data = number;
  slot.request.aio_fildes = static_cast<std::uint32_t>(file.descriptor());
  slot.request.aio_lio_opcode = IOCB_CMD_PREADV;
  slot.request.aio_buf = reinterpret_cast<std::uintptr_t>(slot.read.places().data());
  slot.request.aio_nbytes = slot.read.places().size();
  slot.request.aio_offset = static_cast<std::int64_t>(slot.read.offset());
  bytes_ += slot.part.bytes;
}

void AsyncReads::wait() noexcept {
  if (free_.size() == kMost) return;
  std::array<io_event, kMost> events;
  long got = 0;
  do {
    got = used_calls.load()->get_events(context_, 1, kMost, events.data());
  } while (got < 0 && errno == EINTR);
  for (long i = 0; i < got; ++i)
    end_part(static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data),
             events[static_cast<std::size_t>(i)].res);
}

void AsyncReads::end_part(std::size_t number, std::int64_t got) noexcept {
  const Slot& slot = slots_[number];
  Batch& batch = *slot.batch;
  free_.push_back(number);
  bytes_ -= slot.part.bytes;
  --batch.left;
  if (slot.read.finish(static_cast<std::size_t>(std::max<std::int64_t>(got, 0))) == slot.part.bytes) return;
  if (got <= 0) batch.wanted[slot.part.first].file->refuse();
  for (std::size_t i = 0; i < slot.part.count; ++i)
    batch.failed.push_back(batch.wanted[slot.part.first + i].sample);
}

}  // namespace penstock
