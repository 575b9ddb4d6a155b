#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/process_board.hpp>
#include <penstock/transfer/link_profile.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// Device memory that is filled, and the function that writes its bytes: see FillFunction.
struct FilledBlock {
  std::byte* destination = nullptr;
  std::size_t bytes = 0;
  FillFunction fill;
};

struct RankFillOptions {
  /// The blocks are written after the work that is on this stream now. Null: at once.
  const Stream* after = nullptr;
  /// The link's measured profile. If all processes have one, faster links bring more: see Loader. None:
  /// LinkProfile::defaults.
  std::optional<LinkProfile> profile = std::nullopt;
};

/// Fills the blocks of each process with the same bytes, each of which crosses one link: a process fills its
/// parts, and copies those of the others from their devices' memory, as a Loader does whose destination is a
/// rank.
///
/// `board`: all processes of the group call this equally often with it. It may serve many calls, one at a
/// time. `facts`: a text that says what is sent, for ProcessBoard::agree. That the processes' functions write
/// the same bytes is up to the caller.
///
/// Blocks the host until all bytes are there; no function is called any more then. Calls the board's
/// `while_waiting` meanwhile. After an exception the bytes are unspecified, and nothing writes them any more.
/// Takes device memory and pinned memory for some parts of at most 16 MiB, for the call. They are smaller if
/// a device has little free memory, of which half is taken at most.
///
/// False if nothing was written, and each process is to fill its blocks by itself: the group is one process,
/// there is less than 1 MiB, a device has no room for small parts, or the devices cannot map each other's
/// memory. The last is tried once for a board. It logs the last two, one time for a board. The same in all.
///
/// Throws as ProcessBoard::agree, Loader and Loader::next, and the exceptions of the functions.
[[nodiscard]] bool fill_ranks(const Device& device, ProcessBoard& board, const std::string& facts,
                              std::vector<FilledBlock> blocks, const RankFillOptions& options = {});

}  // namespace penstock
