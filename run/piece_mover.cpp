#include "run/piece_mover.hpp"

#include <exception>
#include <thread>
#include <utility>

namespace penstock::run {

namespace {

/// How long idle workers poll for the next piece: copies of a state follow each other sooner.
constexpr std::chrono::microseconds kPolling{1000};
/// How long the owner polls for a piece before it asks the device again.
constexpr std::chrono::microseconds kStepPolling{2};
/// With as many others at work, the owner only calls the device.
constexpr std::size_t kEnough = 4;

}  // namespace

PieceMover::PieceMover(std::shared_ptr<HostWorkers> workers)
    : Source(workers->threads() - 1), workers_(std::move(workers)), polling_(kPolling) {
  workers_->add(*this);
}

PieceMover::~PieceMover() { workers_->remove(*this); }

void PieceMover::run(std::size_t count, std::size_t at_once, FunctionRef<std::size_t(std::size_t moved)> step,
                     FunctionRef<void(std::size_t)> move) {
  at_once_.store(at_once, std::memory_order_relaxed);
  first_ = ready_.load(std::memory_order_relaxed);
  move_ = &move;
  moved_ = std::vector<std::atomic<bool>>(count);
  runs_.store(true, std::memory_order_relaxed);
  polling_.work_begins();
  workers_->work_begins();
  std::exception_ptr failure;
  try {
    move_all(step);
  } catch (...) {
    failure = std::current_exception();
    while (done_.load(std::memory_order_acquire) != ready_.load(std::memory_order_relaxed)) {
      if (!move_next()) std::this_thread::yield();
    }
  }
  workers_->work_ends();
  polling_.work_ends();
  runs_.store(false, std::memory_order_relaxed);
  if (failure) std::rethrow_exception(failure);
}

void PieceMover::move_all(FunctionRef<std::size_t(std::size_t moved)> step) {
  for (std::size_t moved = 0;;) {
    const std::size_t before = moved;
    while (moved < moved_.size() && moved_[moved].load(std::memory_order_acquire)) ++moved;
    const std::size_t ready = first_ + step(moved);
    if (moved == moved_.size()) return;
    if (ready != ready_.load(std::memory_order_relaxed)) {
      ready_.store(ready, std::memory_order_release);
      workers_->wake(*this);
      continue;
    }
    if (moved != before) continue;
    const std::size_t done = done_.load(std::memory_order_relaxed);
    if (next_.load(std::memory_order_relaxed) - done < kEnough && move_next()) continue;
    const auto goes_on = [&] { return moved_[moved].load(std::memory_order_relaxed); };
    // Who moves that piece may need this processor.
    if (!spin_until(goes_on, kStepPolling)) std::this_thread::yield();
  }
}

bool PieceMover::work() noexcept {
  bool worked = false;
  for (std::size_t left = at_once_.load(std::memory_order_relaxed); left > 0 && move_next(); --left)
    worked = true;
  return worked;
}

bool PieceMover::move_next() noexcept {
  std::size_t piece = next_.load(std::memory_order_relaxed);
  do {
    if (piece >= ready_.load(std::memory_order_acquire)) return false;
  } while (!next_.compare_exchange_weak(piece, piece + 1, std::memory_order_relaxed));
  const std::size_t number = piece - first_;
  (*move_)(number);
  moved_[number].store(true, std::memory_order_release);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

std::chrono::nanoseconds PieceMover::polling() const noexcept {
  return runs_.load(std::memory_order_relaxed) ? kPolling : polling_.get();
}

}  // namespace penstock::run
