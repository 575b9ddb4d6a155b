#include "transfer/engine_fixture.hpp"

#include <vector>

namespace penstock::testing {
namespace {

constexpr std::size_t kTunedBytes = 256 * kKiB;

/// Transfers use the device's figures.
class TuningTest : public FaultyEngineTest {};
PENSTOCK_DEVICE_SUITE(TuningTest);

TEST_P(TuningTest, ChunksAreTheDevices) {
  DeviceTuning tuning;
  tuning.packing.first_chunk_bytes = tuning.packing.largest_chunk_bytes = 16 * kKiB;
  tuning.packing.window_bytes = 64 * kKiB;
  tuning.first_staged_chunk = 8 * kKiB;
  tuning.staged_chunks.front() = 32 * kKiB;
  faulty_->tune(tuning);
  TransferEngine engine(*faulty_device_);
  const auto source = random_bytes(kTunedBytes, 1);
  const Buffer device = poisoned_on_device(kTunedBytes);
  const auto copies = [&](TransferPath path) {
    const Transfer transfer = engine.copy(device.data(), source.data(), kTunedBytes, {.path = path});
    transfer.synchronize();
    EXPECT_EQ(first_difference(read(device), source), -1);
    return transfer.report().copies;
  };
  EXPECT_EQ(copies(TransferPath::packed), kTunedBytes / (16 * kKiB));
  const std::size_t most = copies(TransferPath::staged);
  EXPECT_GT(most, kTunedBytes / (32 * kKiB)) << "the first chunks are smaller than the largest";
  EXPECT_LT(most, kTunedBytes / (8 * kKiB)) << "later ones are larger than the first";
}

TEST_P(TuningTest, ShortRunsGoThroughAKernel) {
  constexpr std::size_t kRun = 1 * kKiB;
  const auto source = random_bytes(kTunedBytes, 2);
  const Buffer device = poisoned_on_device(kTunedBytes);
  std::vector<TransferPiece> pieces;
  for (std::size_t at = 0; at < kTunedBytes; at += 16 * kRun) {
    pieces.push_back({source.data() + at, device.data() + at, kRun});
  }
  const auto kernels = [&](std::size_t shortest_run) {
    DeviceTuning tuning;
    tuning.packing.shortest_run_bytes = shortest_run;
    faulty_->tune(tuning);
    TransferEngine engine(*faulty_device_);
    const std::size_t before = faulty_->calls(Entry::copy_pieces);
    engine.copy_pieces(pieces, CopyDirection::h2d, {.path = TransferPath::packed}).synchronize();
    return faulty_->calls(Entry::copy_pieces) - before;
  };
  EXPECT_EQ(kernels(kRun), 0u);
  EXPECT_EQ(kernels(kRun + 1), 1u);
}

}  // namespace
}  // namespace penstock::testing
