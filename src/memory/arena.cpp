#include "memory/arena.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

Arena::FreeSet::node_type Arena::make_node() {
  FreeSet one;
  one.emplace();
  return one.extract(one.begin());
}

void Arena::insert_free(Handle block) noexcept {
  FreeSet::node_type node = std::move(block->second.free_node_);
  node.value() = FreeKey{block->second.bytes_, block->first};
  block->second.use_ = BlockUse::free;
  block->second.requested = 0;
  free_.insert(std::move(node));
}

void Arena::remove_free(Handle block) noexcept {
  block->second.free_node_ = free_.extract(FreeKey{block->second.bytes_, block->first});
}

Arena::Handle Arena::take(std::size_t bytes) {
  const auto fit = free_.lower_bound(FreeKey{bytes, nullptr});
  if (fit == free_.end()) return blocks_.end();
  const Handle block = blocks_.find(fit->second);
  const std::size_t left = block->second.bytes_ - bytes;
  if (left > 0) {
    const Handle rest = blocks_.emplace_hint(std::next(block), block->first + bytes, Block{});
    try {
      rest->second.free_node_ = make_node();
    } catch (...) {
      blocks_.erase(rest);
      throw;
    }
    rest->second.bytes_ = left;
    insert_free(rest);
  }
  block->second.free_node_ = free_.extract(fit);
  block->second.bytes_ = bytes;
  block->second.use_ = BlockUse::live;
  return block;
}

void Arena::give(Handle block) noexcept {
  const Handle next = std::next(block);
  if (next != blocks_.end() && !next->second.starts_segment_ && next->second.use_ == BlockUse::free) {
    remove_free(next);
    block->second.bytes_ += next->second.bytes_;
    blocks_.erase(next);
  }
  if (!block->second.starts_segment_) {
    const Handle before = std::prev(block);
    if (before->second.use_ == BlockUse::free) {
      remove_free(before);
      before->second.bytes_ += block->second.bytes_;
      blocks_.erase(block);
      block = before;
    }
  }
  insert_free(block);
}

void Arena::add(Segment segment) {
  const auto place = std::upper_bound(segments_.begin(), segments_.end(), segment,
                                      [](const Segment& a, const Segment& b) { return a.bytes < b.bytes; }) -
                     segments_.begin();
  segments_.reserve(segments_.size() + 1);
  const Handle block = blocks_.try_emplace(segment.data).first;
  try {
    block->second.free_node_ = make_node();
  } catch (...) {
    blocks_.erase(block);
    throw;
  }
  segments_.insert(segments_.begin() + place, segment);
  block->second.bytes_ = segment.bytes;
  block->second.starts_segment_ = true;
  insert_free(block);
}

bool Arena::is_idle(const Segment& segment) const noexcept {
  const Block& first = blocks_.find(segment.data)->second;
  return first.use_ == BlockUse::free && first.bytes_ == segment.bytes;
}

std::optional<Segment> Arena::remove_idle() noexcept {
  const auto found =
      std::ranges::find_if(segments_, [&](const Segment& segment) { return is_idle(segment); });
  if (found == segments_.end()) return {};
  const Segment removed = *found;
  const Handle block = blocks_.find(removed.data);
  remove_free(block);
  blocks_.erase(block);
  segments_.erase(found);
  return removed;
}

std::size_t Arena::idle_bytes() const noexcept {
  std::size_t total = 0;
  for (const Segment& segment : segments_) {
    if (is_idle(segment)) total += segment.bytes;
  }
  return total;
}

std::size_t Arena::largest_free() const noexcept { return free_.empty() ? 0 : free_.rbegin()->first; }

bool Arena::pending_could_free(std::size_t bytes, std::size_t idle_bytes) const noexcept {
  std::size_t idle = 0;
  bool pending_anywhere = false;
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    std::size_t run = 0;
    std::size_t segment_bytes = 0;
    bool run_pends = false;
    bool busy = false;
    do {
      const Block& now = block->second;
      const bool pends = now.use_ == BlockUse::pending;
      pending_anywhere = pending_anywhere || pends;
      if (pends || now.use_ == BlockUse::free) {
        run += now.bytes_;
        run_pends = run_pends || pends;
        if (run_pends && run >= bytes) return true;
      } else {
        run = 0;
        run_pends = false;
        busy = true;
      }
      segment_bytes += now.bytes_;
      ++block;
    } while (block != blocks_.end() && !block->second.starts_segment_);
    if (!busy) idle += segment_bytes;
  }
  return pending_anywhere && idle >= idle_bytes;
}

}  // namespace penstock
