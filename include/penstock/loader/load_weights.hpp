#pragma once

#include <penstock/data/weights.hpp>
#include <penstock/transfer/group_engine.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <cstddef>
#include <span>

namespace penstock {

/// Sends `file`'s block to `destination`, which is device memory of file.bytes() bytes, aligned to
/// WeightFile::kAlignment. Host workers read the file straight into pinned slots, while earlier slots cross
/// the link. Returns at once; see TransferEngine::fill. An error of WeightFile::read is the transfer's error.
[[nodiscard]] Transfer load_weights(TransferEngine& engine, const WeightFile& file, void* destination,
                                    const FillOptions& options = {});

/// The same to each member of a group: `destinations` are memory of each, in their order. Each byte is read
/// once, and crosses one of the links. See GroupEngine::feed_once.
[[nodiscard]] Transfer load_weights(GroupEngine& engine, const WeightFile& file,
                                    std::span<std::byte* const> destinations,
                                    const GroupFillOptions& options = {});

/// The same to one member of a group, the `receiver`, over the links of all. See GroupEngine::relay.
[[nodiscard]] Transfer load_weights(GroupEngine& engine, std::size_t receiver, const WeightFile& file,
                                    void* destination, const GroupFillOptions& options = {});

}  // namespace penstock
