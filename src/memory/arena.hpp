#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace penstock {

enum class BlockUse : std::uint8_t {
  free,
  live,     ///< in a buffer
  pending,  ///< released; its release event is not known to be done
  lost,     ///< released; the device failed and cannot say whether work on it is done
};

struct Segment {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Bookkeeping of segments that are cut into blocks. Best fit; among equals, the lowest address first. Free
/// neighbours are coalesced at once. Never touches the memory itself. Not thread-safe.
class Arena {
  using FreeKey = std::pair<std::size_t, std::byte*>;  // size first: the order of a best fit
  using FreeSet = std::set<FreeKey>;

 public:
  class Block {
   public:
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] BlockUse use() const noexcept { return use_; }

    std::size_t requested = 0;

   private:
    friend class Arena;
    std::size_t bytes_ = 0;
    BlockUse use_ = BlockUse::free;
    bool starts_segment_ = false;
    // Kept while the block is in use, so that freeing it does not allocate.
    FreeSet::node_type free_node_;
  };

  using Blocks = std::map<std::byte*, Block>;
  using Handle = Blocks::iterator;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Cuts `bytes` from the smallest free block that holds them, and sets the block's use to `live`. end() if
  /// there is none. Strong guarantee.
  [[nodiscard]] Handle take(std::size_t bytes);
  [[nodiscard]] Handle end() noexcept { return blocks_.end(); }
  /// The block in use that begins at `data`.
  [[nodiscard]] Handle find(std::byte* data) noexcept { return blocks_.find(data); }
  void set_use(Handle block, BlockUse use) noexcept { block->second.use_ = use; }
  /// Makes a block free; its handle is no longer valid.
  void give(Handle block) noexcept;

  /// Adds a free segment. Strong guarantee.
  void add(Segment segment);
  /// Removes the smallest wholly free segment from the arena. Nullopt if there is none.
  [[nodiscard]] std::optional<Segment> remove_idle() noexcept;

  [[nodiscard]] std::size_t idle_bytes() const noexcept;
  [[nodiscard]] std::size_t largest_free() const noexcept;
  /// True if freeing the pending blocks would make a free run of `bytes` in some segment, or would make
  /// segments of `idle_bytes` in all wholly free.
  [[nodiscard]] bool pending_could_free(std::size_t bytes, std::size_t idle_bytes) const noexcept;

 private:
  [[nodiscard]] static FreeSet::node_type make_node();
  void insert_free(Handle block) noexcept;
  void remove_free(Handle block) noexcept;
  [[nodiscard]] bool is_idle(const Segment& segment) const noexcept;

  Blocks blocks_;
  FreeSet free_;
  std::vector<Segment> segments_;  // by size
};

}  // namespace penstock
