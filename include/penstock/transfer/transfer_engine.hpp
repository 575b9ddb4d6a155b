#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>
#include <penstock/transfer/transfer.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

struct TransferOptions {
  static constexpr unsigned kMostThreads = HostWorkersOptions::kMostThreads;

  /// What the link does. None: LinkProfile::defaults.
  std::optional<LinkProfile> profile = std::nullopt;
  /// Have the threads that move bytes. Null: the device's, or a team of the engine's own if `threads` are
  /// given.
  std::shared_ptr<HostWorkers> workers = nullptr;
  /// Host threads that move the bytes of a transfer; whoever packs, or synchronizes with it, is one of them.
  /// At most kMostThreads. 0: as the profile says, within those that there are.
  unsigned threads = 0;
  /// Largest chunk of a staged transfer. 0: as the profile says.
  std::size_t chunk_bytes = 0;
  /// Pinned slots of the size of the largest chunk for staging, in each direction: 2 to 64.
  unsigned slots = 4;
  /// Whether staging writes past the cache. None: as the profile says.
  std::optional<bool> streaming_stores = std::nullopt;
};

struct CopyOptions {
  TransferPath path = TransferPath::automatic;
  /// What the ends are, where the caller knows; none: the driver is asked, which costs a fraction of a µs.
  std::optional<MemoryKind> source_kind = std::nullopt;
  std::optional<MemoryKind> destination_kind = std::nullopt;
  /// The transfer touches neither end before the work that this stream held at the request is done. Null: at
  /// once.
  const Stream* after = nullptr;
  /// Has the device note when the transfer's copies begin and end, for Transfer::span_since: costs one more
  /// event.
  bool timed = false;
};

/// One of the pieces of a packed transfer.
struct TransferPiece {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::size_t bytes = 0;
};

/// Where pieces lie when they are packed side by side, each aligned.
struct PackedLayout {
  std::vector<std::size_t> offsets;  ///< of each piece, bytes from the start; ascending
  std::size_t bytes = 0;             ///< of the whole, a multiple of the alignment

  /// `alignment` is a power of two. Throws InvalidArgument for another, or when the sum does not fit size_t.
  [[nodiscard]] static PackedLayout of(std::span<const std::size_t> piece_bytes, std::size_t alignment = 256);
};

/// Moves bytes between a host and one device, from one byte to many GB. Thread-safe: any thread may request;
/// transfers are independent of each other and may finish in any order, but for those that come `after` a
/// stream: what holds one of these back may hold back others of them. Destroying the engine cancels what was
/// not yet handed to the driver, waits for the rest, and leaves every handle answerable.
class TransferEngine {
 public:
  explicit TransferEngine(Device device, TransferOptions options = {});
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Copies `bytes` from `source` to `destination`; at least one is device memory. Throws InvalidArgument for
  /// null regions, overlap, host to host, or a path that the kinds do not have. What the host does meanwhile,
  /// and when the source may change or be freed (besides when the transfer is done):
  ///  - direct: returns at once; the source is read until the transfer is done. Pageable memory is allowed
  ///  when
  ///    this path is forced, and then the call behaves as the driver's own copy.
  ///  - staged: returns at once; the source is read until synchronize_source returns.
  ///  - packed: H2D returns when the source was read; D2H returns at once.
  [[nodiscard]] Transfer copy(void* destination, const void* source, std::size_t bytes,
                              const CopyOptions& options = {});

  /// Copies many pieces, all in one direction. Device ends that lie side by side in ascending order, as a
  /// PackedLayout puts them, travel in one copy (in chunks where they are large), and the bytes between
  /// pieces become unspecified up to the next multiple of 256; others are gathered or scattered by a kernel.
  /// Host ends lie anywhere. Pieces of zero bytes are allowed. Throws as copy does, and for destinations that
  /// overlap.
  [[nodiscard]] Transfer copy_pieces(std::span<const TransferPiece> pieces, CopyDirection direction,
                                     const CopyOptions& options = {});

  [[nodiscard]] const LinkProfile& profile() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  /// Host threads that move the bytes of one transfer.
  [[nodiscard]] unsigned threads() const noexcept;

 private:
  std::unique_ptr<class TransferEngineImpl> impl_;
};

}  // namespace penstock
