#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>
#include <penstock/transfer/transfer.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

struct TransferOptions {
  static constexpr unsigned kMostThreads = HostWorkersOptions::kMostThreads;

  /// The link's profile. None: LinkProfile::defaults.
  std::optional<LinkProfile> profile = std::nullopt;
  /// The team of threads that move bytes. Null: the device's, or the engine's own if `threads` is given.
  std::shared_ptr<HostWorkers> workers = nullptr;
  /// Host threads that move the bytes of a transfer, with the thread that packs or synchronizes with it. At
  /// most kMostThreads. 0: as the profile says, within the team's threads.
  unsigned threads = 0;
  /// Largest chunk of a staged transfer. 0: as the profile says.
  std::size_t chunk_bytes = 0;
  /// Pinned slots for staging in each direction, each as large as the largest chunk: 2 to 64.
  unsigned slots = 4;
  /// Whether staging writes past the cache. None: as the profile says.
  std::optional<bool> streaming_stores = std::nullopt;
};

struct CopyOptions {
  TransferPath path = TransferPath::automatic;
  /// The kinds of memory at both ends. None: the driver is asked, which takes a fraction of a µs.
  std::optional<MemoryKind> source_kind = std::nullopt;
  std::optional<MemoryKind> destination_kind = std::nullopt;
  /// The transfer touches neither end before the work now on this stream is done. Null: it starts at once.
  const Stream* after = nullptr;
  /// Copies are neither cut into parts nor put in turn on two streams: the program's other copies wait for
  /// all of them.
  bool whole = false;
  /// Has the device note when the copies begin and end, for Transfer::span_since. Costs one more event.
  bool timed = false;
};

/// Writes all of `bytes`, which are those of a fill from `offset` on. Several threads call it at once, for
/// parts that do not overlap, in any order. It may block, on a file for example, but must not wait for
/// another transfer of the engine. An exception ends the transfer.
using FillFunction = std::function<void(std::size_t offset, std::span<std::byte> bytes)>;

struct FillOptions {
  /// As in CopyOptions.
  const Stream* after = nullptr;
  bool timed = false;
};

/// One of the pieces of a packed transfer.
struct TransferPiece {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::size_t bytes = 0;
};

/// The places of pieces that are packed side by side, each aligned.
struct PackedLayout {
  std::vector<std::size_t> offsets;  ///< of each piece, bytes from the start; ascending
  std::size_t bytes = 0;             ///< of the whole, a multiple of the alignment

  /// Throws InvalidArgument if `alignment` is not a power of two, or if the sum does not fit size_t.
  [[nodiscard]] static PackedLayout of(std::span<const std::size_t> piece_bytes, std::size_t alignment = 256);
};

/// Moves bytes between a host and one device, from one byte to many GB. Thread-safe.
///
/// Transfers are independent of each other and may finish in any order. Those that come `after` a stream are
/// the exception: if one of them is held back, others of them may be too. The destructor cancels transfers
/// that are not yet with the driver and waits for the others. Their handles stay valid.
class TransferEngine {
 public:
  explicit TransferEngine(Device device, TransferOptions options = {});
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Copies `bytes` from `source` to `destination`, of which at least one is device memory. Throws
  /// InvalidArgument for null regions, overlap, host to host, or a path that the kinds of memory do not have.
  ///
  /// When the call returns, and until when the source is read:
  ///  - direct: at once; until the transfer is done. A large copy from locked memory to the device is
  ///    enqueued in parts, so that other copies of the program come in between. A thread of the engine does
  ///    so, or the one that makes a stream wait. If this path is forced, pageable memory is allowed, and
  ///    the call behaves as the driver's own copy.
  ///  - staged: at once; until synchronize_source returns.
  ///  - packed, H2D: once the source was read, which is then free.
  ///  - packed, D2H: at once; until the transfer is done.
  [[nodiscard]] Transfer copy(void* destination, const void* source, std::size_t bytes,
                              const CopyOptions& options = {});

  /// Copies many pieces, all in one direction. Host ends lie anywhere; pieces of zero bytes are allowed.
  ///
  /// TransferPath::staged is for large pieces in pageable memory: they travel as one stream of chunks, which
  /// do not end where pieces do. The call returns at once, as that of a staged copy. Otherwise pieces are
  /// packed by the calling thread and the workers, or travel directly.
  ///
  /// If device ends lie side by side in ascending order, as a PackedLayout puts them, they travel in one
  /// copy, or in chunks if they are large. Bytes between such pieces, up to the next multiple of 256, become
  /// unspecified. Other device ends are gathered or scattered by a kernel. Throws as copy does, and for
  /// destinations that overlap.
  [[nodiscard]] Transfer copy_pieces(std::span<const TransferPiece> pieces, CopyDirection direction,
                                     const CopyOptions& options = {});

  /// Fills device memory with what `fill` writes: a staged transfer that has a function in place of a source.
  /// The function writes straight into pinned slots, while earlier slots cross the link.
  ///
  /// Returns at once. Host workers call `fill`, and so does a thread that synchronizes with the transfer.
  /// Once synchronize or synchronize_source has returned or thrown, `fill` is not called any more. It is
  /// destroyed on any thread, perhaps a little later. If it throws, no part that has not begun is filled; the
  /// transfer fails with the first exception, which is thrown as it is.
  ///
  /// Throws InvalidArgument if `fill` is empty, or if the destination is null or not device memory.
  [[nodiscard]] Transfer fill(void* destination, std::size_t bytes, FillFunction fill,
                              const FillOptions& options = {});

  [[nodiscard]] const LinkProfile& profile() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  /// Host threads that move the bytes of one transfer.
  [[nodiscard]] unsigned threads() const noexcept;

 private:
  std::unique_ptr<class TransferEngineImpl> impl_;
};

}  // namespace penstock
