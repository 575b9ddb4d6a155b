#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock {

/// An unbounded queue from many producers, which the owner's lock puts in order, to one consumer, which does
/// not lock. Numbers its items from 1. Blocks of items go round between the two, so a queue that has reached
/// its greatest length allocates no more. There is always room for one item.
template <typename T>
class WorkQueue {
 public:
  WorkQueue() : tail_(new Block), head_(tail_) {}
  ~WorkQueue() {
    free_list(head_);
    free_list(idle_);
    free_list(returned_.load(std::memory_order_acquire));
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Appends, and returns the item's number. One producer at a time. Throws std::bad_alloc, and appends
  /// nothing.
  std::uint64_t push(const T& item) {
    const std::uint64_t count = pushed_.load(std::memory_order_relaxed);
    Block* const block = tail_;
    if (count % kBlockItems == kBlockItems - 1) {
      block->next = take_block();
      tail_ = block->next;
    }
    return append(*block, item);
  }
  /// The same for the last item of all.
  std::uint64_t push_last(const T& item) noexcept { return append(*tail_, item); }

  /// Number of the newest item.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_.load(std::memory_order_acquire); }

  /// Takes the oldest item, which must exist. Only the consumer calls it.
  T pop() noexcept {
    if (popped_ != 0 && popped_ % kBlockItems == 0) {
      Block* const spent = head_;
      head_ = head_->next;
      spent->next = returned_.load(std::memory_order_relaxed);
      while (!returned_.compare_exchange_weak(spent->next, spent, std::memory_order_release,
                                              std::memory_order_relaxed)) {
      }
    }
    return head_->items[popped_++ % kBlockItems];
  }

 private:
  static constexpr std::size_t kBlockItems = 128;

  struct Block {
    std::array<T, kBlockItems> items;
    Block* next = nullptr;
  };

  std::uint64_t append(Block& block, const T& item) noexcept {
    const std::uint64_t count = pushed_.load(std::memory_order_relaxed);
    block.items[count % kBlockItems] = item;
    pushed_.store(count + 1, std::memory_order_release);
    return count + 1;
  }

  Block* take_block() {
    if (idle_ == nullptr) idle_ = returned_.exchange(nullptr, std::memory_order_acquire);
    if (idle_ == nullptr) return new Block;
    Block* const block = std::exchange(idle_, idle_->next);
    block->next = nullptr;
    return block;
  }

  static void free_list(Block* block) noexcept {
    while (block != nullptr) delete std::exchange(block, block->next);
  }

  alignas(64) Block* tail_;
  Block* idle_ = nullptr;
  std::atomic<std::uint64_t> pushed_{0};
  alignas(64) Block* head_;
  std::uint64_t popped_ = 0;
  std::atomic<Block*> returned_{nullptr};
};

}  // namespace penstock
