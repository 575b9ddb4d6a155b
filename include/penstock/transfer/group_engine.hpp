#pragma once

#include <penstock/device/device_group.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>
#include <penstock/transfer/transfer.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

struct GroupOptions {
  /// The profile of each member's link, in the group's order. Empty: LinkProfile::defaults of each.
  std::vector<LinkProfile> profiles = {};
  /// The measured profile of the group. It gives chunks and slots that are not given here, and the rates with
  /// which the chunks of a relay are compared. If it shows that relays to a member, or feeding once, do not
  /// pay, copies go over the link of each receiver alone.
  std::optional<GroupProfile> measured = std::nullopt;
  /// Host threads of each member's team that fill its slots. 0: as its profile says.
  unsigned threads = 0;
  /// Largest chunk. 0: as measured; otherwise the smallest that one of the profiles says.
  std::size_t chunk_bytes = 0;
  /// Chunks that each link has at once, 2 to 64. 0: as measured; otherwise 4. As many pinned slots are
  /// allocated for each member that sends pageable memory, and as many device buffers for each that relays,
  /// each as large as a chunk.
  unsigned slots = 0;
};

/// One of the arrays that travel together.
struct GroupPiece {
  const std::byte* source = nullptr;
  std::size_t offset = 0;  ///< bytes from the start of each destination
  std::size_t bytes = 0;
};

struct GroupCopyOptions {
  /// The kind of all sources. None: the drivers are asked.
  std::optional<MemoryKind> source_kind = std::nullopt;
  /// A stream of each device that receives, in their order; null: none. Its destination is not touched before
  /// the work now on the stream is done. Empty: all start at once. If a transfer is held back so, those that
  /// are requested after it may be too.
  std::vector<const Stream*> after = {};
};

struct GroupFillOptions {
  /// As in GroupCopyOptions.
  std::vector<const Stream*> after = {};
};

/// Moves bytes from a host to the devices of a group, over the links of all of them at once. Thread-safe.
///
/// A transfer is cut into chunks. Each member takes the next chunk when its link has room for it: it pulls
/// the chunk over its link, and pushes it on to those that shall have it. So a link that others use, or a
/// slower one, carries less. A member sits out if it has no memory for slots. Members that do not reach each
/// other (DeviceGroup::unreached) do not push to each other. A warning names them once.
///
/// A Transfer of this engine is one of all devices. It is done once each of them has all bytes. Any stream of
/// a member may wait for it. If one device fails, the transfer fails for all, once none is touched any more;
/// a query that finds the failure blocks until then. Its path is `staged` if every link carries it out of
/// slots, otherwise `direct`. It is not timed. The destructor cancels transfers with chunks that no link has
/// yet, and waits for the others.
class GroupEngine {
 public:
  /// Starts a thread for each member. Throws InvalidArgument for options out of range, DeviceError.
  explicit GroupEngine(DeviceGroup group, GroupOptions options = {});
  ~GroupEngine();
  GroupEngine(const GroupEngine&) = delete;
  GroupEngine& operator=(const GroupEngine&) = delete;

  /// Feeds all members once: every one of them receives every byte. Each byte crosses one of the links, if
  /// all members reach each other. `destinations`: device memory of each member, in their order. A member
  /// whose memory is not open to the others (Device::is_open_to_peers) pulls all for itself. Bytes
  /// between pieces, up to the next multiple of 256, become unspecified.
  ///
  /// Returns at once. The sources are read until synchronize_source returns. Pieces of zero bytes are
  /// allowed. Throws InvalidArgument for null ends, pieces that overlap, or destinations that are not memory
  /// of their device.
  [[nodiscard]] Transfer feed_once(std::span<std::byte* const> destinations,
                                   std::span<const GroupPiece> pieces, const GroupCopyOptions& options = {});
  /// The same for one array.
  [[nodiscard]] Transfer feed_once(std::span<std::byte* const> destinations, const void* source,
                                   std::size_t bytes, const GroupCopyOptions& options = {});

  /// Sends to one member, the `receiver`, over the links of all that reach it. The others pull into buffers
  /// of their own, and give way: if others use such a member's link, or its way to the receiver, its chunks
  /// take longer, and those over the receiver's own link do not. It then carries only a probe now and then,
  /// until it finds the wires free again. Without a measured profile, others are not noticed if they are
  /// there from the first chunk of the engine on. Otherwise as feed_once.
  [[nodiscard]] Transfer relay(std::size_t receiver, std::byte* destination,
                               std::span<const GroupPiece> pieces, const GroupCopyOptions& options = {});
  [[nodiscard]] Transfer relay(std::size_t receiver, void* destination, const void* source, std::size_t bytes,
                               const GroupCopyOptions& options = {});

  /// The same with a function in place of a source, which writes into the members' pinned slots:
  /// TransferEngine::fill says what it may do, and what if it throws. Each byte is asked for once; but once
  /// for each clique, if some members do not reach each other, and once more for each member to whose
  /// destination the others do not get. Throws InvalidArgument if `fill` is empty too.
  [[nodiscard]] Transfer feed_once_filled(std::span<std::byte* const> destinations, std::size_t bytes,
                                          FillFunction fill, const GroupFillOptions& options = {});
  [[nodiscard]] Transfer relay_filled(std::size_t receiver, void* destination, std::size_t bytes,
                                      FillFunction fill, const GroupFillOptions& options = {});

  /// Bytes that each member has pulled over its link since the engine was made. Of two calls, the difference
  /// shows the share of each.
  [[nodiscard]] std::vector<std::size_t> carried() const;
  [[nodiscard]] const DeviceGroup& group() const noexcept;

 private:
  std::unique_ptr<class GroupEngineImpl> impl_;
};

}  // namespace penstock
