#include "core/shared/chunk_filler.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kSmallestPart = std::size_t{64} << 10;
constexpr std::size_t kLargestPart = std::size_t{512} << 10;
constexpr std::size_t kPartAlignment = 4096;
/// How long idle workers poll while chunks follow each other. About as long as a link takes for its chunks.
constexpr std::chrono::microseconds kChunkPolling{1000};
/// How long the owner polls for the others' last parts: about as long as a part takes.
constexpr std::chrono::microseconds kPartPolling{50};

}  // namespace

ChunkFiller::ChunkFiller(std::shared_ptr<HostWorkers> workers, unsigned threads)
    : Source(threads - 1), workers_(std::move(workers)), threads_(threads), polling_(kChunkPolling) {
  workers_->add(*this);
}

ChunkFiller::~ChunkFiller() { workers_->remove(*this); }

void ChunkFiller::open(std::size_t bytes, FillPart fill) {
  const std::size_t part =
      std::clamp(align_up(bytes / threads_, kPartAlignment), kSmallestPart, kLargestPart);
  {
    const std::lock_guard lock(mutex_);
    chunks_.push_back({.fill = std::move(fill), .bytes = bytes, .part = part, .left = bytes});
    if (open_++ == 0) {
      polling_.work_begins();
      workers_->work_begins();
    }
  }
  workers_->wake(*this);
}

void ChunkFiller::finish_first(FunctionRef<void()> open_next) {
  std::unique_lock lock(mutex_);
  const Chunk& first = chunks_.front();
  bool asks = threads_ > 1;
  while (first.left != 0) {
    const bool filled = fill_part(lock);
    if (asks && !first.failure && runs_out(first)) {
      asks = false;
      lock.unlock();
      open_next();
      lock_soon(lock);
    } else if (!filled) {
      wait_until_full(lock, first);
    }
  }
  if (asks && !first.failure) {
    lock.unlock();
    open_next();
    lock_soon(lock);
  }
  const std::exception_ptr failure = first.failure;
  chunks_.pop_front();
  if (--open_ == 0) {
    workers_->work_ends();
    polling_.work_ends();
  }
  if (failure) std::rethrow_exception(failure);
}

bool ChunkFiller::work() noexcept {
  if (open_.load(std::memory_order_relaxed) == 0) return false;
  std::unique_lock lock(mutex_, std::defer_lock);
  lock_soon(lock);
  return fill_part(lock);
}

std::chrono::nanoseconds ChunkFiller::polling() const noexcept {
  return open_.load(std::memory_order_relaxed) != 0 ? kChunkPolling : polling_.get();
}

bool ChunkFiller::fill_part(std::unique_lock<std::mutex>& lock) noexcept {
  const auto found =
      std::ranges::find_if(chunks_, [](const Chunk& chunk) { return chunk.handed_out < chunk.bytes; });
  if (found == chunks_.end()) return false;
  Chunk& chunk = *found;
  const std::size_t from = chunk.handed_out;
  const std::size_t bytes = std::min(chunk.part, chunk.bytes - from);
  chunk.handed_out += bytes;
  lock.unlock();
  std::exception_ptr failure;
  try {
    chunk.fill(from, bytes);
  } catch (...) {
    failure = std::current_exception();
  }
  lock_soon(lock);
  if (failure) {
    if (!chunk.failure) chunk.failure = failure;
    chunk.left -= chunk.bytes - chunk.handed_out;
    chunk.handed_out = chunk.bytes;
  }
  chunk.left -= bytes;
  if (chunk.left == 0) {
    ++full_;
    changed_.notify_all();
  }
  return true;
}

bool ChunkFiller::runs_out(const Chunk& chunk) const noexcept {
  return chunk.bytes - chunk.handed_out < 2 * threads_ * chunk.part;
}

void ChunkFiller::wait_until_full(std::unique_lock<std::mutex>& lock, const Chunk& chunk) {
  const std::uint64_t seen = full_;
  lock.unlock();
  spin_until([&] { return full_ != seen; }, kPartPolling);
  lock_soon(lock);
  changed_.wait(lock, [&] { return chunk.left == 0; });
}

}  // namespace penstock
