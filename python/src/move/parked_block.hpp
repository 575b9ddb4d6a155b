#pragma once

#include "move/engine.hpp"
#include "move/group.hpp"

#include <penstock/device/memory_kind.hpp>
#include <penstock/transfer/transfer.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {

/// The copies of one ParkedBlock in one direction. The last owner waits for their end.
class Passage {
 public:
  explicit Passage(std::shared_ptr<Storage> memory) : memory_(std::move(memory)) {}
  ~Passage();
  Passage(Passage&& other) noexcept = default;
  Passage& operator=(Passage&&) = delete;

  void add(Transfer transfer) { transfers_.push_back(std::move(transfer)); }
  /// Blocks until all bytes are there. Throws as Transfer::synchronize.
  void wait() const;

 private:
  std::vector<Transfer> transfers_;
  std::shared_ptr<Storage> memory_;  ///< null once moved from
};

/// Memory of the host that holds bytes of a device's tensors while these are parked.
class ParkedBlock {
 public:
  /// A piece: its address on the device, its place in the block, and its bytes.
  using Piece = std::tuple<std::uintptr_t, std::size_t, std::size_t>;

  /// `pinned`: locked, from the engine's pool. Blocks the host. Throws OutOfMemory.
  ParkedBlock(std::shared_ptr<Engine> engine, std::size_t bytes, bool pinned);
  /// In a writable buffer of a Python object, which it keeps, such as a mapped file.
  ParkedBlock(std::shared_ptr<Engine> engine, const nb::object& buffer);

  /// Copies pieces into the block, or out of it. Both ends stay in use until the passage is done. The copies
  /// come after the work that is queued on PyTorch's current stream. Does not block the host.
  [[nodiscard]] Passage down(const std::vector<Piece>& pieces) const {
    return copy(pieces, CopyDirection::d2h, nullptr);
  }
  /// `group`: its first device is the engine's, and the links of all carry the large pieces. May be null.
  [[nodiscard]] Passage up(const std::vector<Piece>& pieces, const std::shared_ptr<Group>& group) const {
    return copy(pieces, CopyDirection::h2d, group.get());
  }

 private:
  [[nodiscard]] Passage copy(const std::vector<Piece>& pieces, CopyDirection direction, Group* group) const;

  std::shared_ptr<Engine> engine_;
  MemoryKind kind_;
  std::shared_ptr<Storage> memory_;
};

/// Hashes of memory of the engine's device, each piece of it an address, a multiple of 16, and bytes: 16
/// bytes for each. After the work that is queued on PyTorch's current stream. Blocks the host.
[[nodiscard]] std::vector<nb::bytes> hash_pieces(
    const std::shared_ptr<Engine>& engine, const std::vector<std::pair<std::uintptr_t, std::size_t>>& pieces);

void bind_parked_block(nb::module_& module);

}  // namespace penstock::python
