#pragma once

#include <penstock/data/weights.hpp>
#include <penstock/transfer/transfer_engine.hpp>

namespace penstock {

/// Sends `file`'s block to `destination`, which is device memory of file.bytes() bytes, aligned to
/// WeightFile::kAlignment. Host workers read the file straight into pinned slots, while earlier slots cross
/// the link. Returns at once; see TransferEngine::fill. An error of WeightFile::read is the transfer's error.
[[nodiscard]] Transfer load_weights(TransferEngine& engine, const WeightFile& file, void* destination,
                                    const FillOptions& options = {});

}  // namespace penstock
