#include "support/gate.hpp"
#include "transfer/engine_fixture.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

namespace penstock::testing {
namespace {

class PackedTest : public EngineTest {
 protected:
  /// Pieces of random sizes up to `largest`, some of them empty, at random places of the host.
  void make_pieces(std::size_t count, std::size_t largest, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    sizes_.clear();
    host_offsets_.clear();
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes_.push_back(i % 17 == 3 ? 0 : 1 + random() % largest);
      host_offsets_.push_back(at);
      at += sizes_.back() + random() % 5;
    }
    host_ = random_bytes(at, seed + 1);
  }

  std::vector<TransferPiece> to_device(std::byte* device, const std::vector<std::size_t>& offsets) const {
    std::vector<TransferPiece> pieces;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      pieces.push_back({host_.data() + host_offsets_[i], device + offsets[i], sizes_[i]});
    }
    return pieces;
  }

  /// The way back, to where the pieces lie in `host`.
  std::vector<TransferPiece> from_device(const std::byte* device, const std::vector<std::size_t>& offsets,
                                         std::vector<std::byte>& host) const {
    std::vector<TransferPiece> pieces;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      pieces.push_back({device + offsets[i], host.data() + host_offsets_[i], sizes_[i]});
    }
    return pieces;
  }

  /// Checks each piece in `image`, and that nothing past the gaps' documented reach was touched.
  void expect_pieces(const std::vector<std::byte>& image, const std::vector<std::size_t>& offsets) const {
    std::vector<std::pair<std::size_t, std::size_t>> owned;  // from where to where
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      EXPECT_EQ(first_difference({image.data() + offsets[i], sizes_[i]},
                                 {host_.data() + host_offsets_[i], sizes_[i]}),
                -1)
          << "piece " << i << " of " << sizes_[i];
      owned.emplace_back(offsets[i], std::min(image.size(), align_up(offsets[i] + sizes_[i], 256)));
    }
    owned.emplace_back(image.size(), image.size());
    std::ranges::sort(owned);
    const std::vector<std::byte> poison(image.size(), kPoison);
    std::size_t at = 0;
    for (const auto& [begin, end] : owned) {
      if (at < begin) {
        EXPECT_EQ(
            first_difference(std::span(image).subspan(at, begin - at), std::span(poison).first(begin - at)),
            -1)
            << "what lies from byte " << at << " on was overwritten";
      }
      at = std::max(at, end);
    }
  }

  void to_the_device_and_back(TransferEngine& engine, TransferPath path,
                              const std::vector<std::size_t>& offsets, std::size_t device_bytes,
                              std::size_t most_copies = ~std::size_t{0}) {
    const Buffer device = poisoned_on_device(device_bytes);
    const Transfer sent =
        engine.copy_pieces(to_device(device.data(), offsets), CopyDirection::h2d, {.path = path});
    sent.synchronize();
    EXPECT_LE(sent.report().copies, most_copies);
    expect_pieces(read(device), offsets);

    std::vector<std::byte> back(host_.size(), kPoison);
    const Transfer returned =
        engine.copy_pieces(from_device(device.data(), offsets, back), CopyDirection::d2h, {.path = path});
    returned.synchronize();
    EXPECT_LE(returned.report().copies, most_copies);
    EXPECT_EQ(returned.bytes(), std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}));
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      EXPECT_EQ(first_difference({back.data() + host_offsets_[i], sizes_[i]},
                                 {host_.data() + host_offsets_[i], sizes_[i]}),
                -1);
      const std::size_t end = i + 1 < sizes_.size() ? host_offsets_[i + 1] : back.size();
      for (std::size_t b = host_offsets_[i] + sizes_[i]; b < end; ++b) ASSERT_EQ(back[b], kPoison);
    }
  }

  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> host_offsets_;
  std::vector<std::byte> host_;
};
PENSTOCK_DEVICE_SUITE(PackedTest);

constexpr TransferPath kPackedPaths[] = {TransferPath::packed, TransferPath::staged};

TEST_P(PackedTest, PiecesSideBySideTravelInFewCopies) {
  TransferEngine engine(*device_, many_chunks());
  make_pieces(1000, 4096, 1);
  const PackedLayout layout = PackedLayout::of(sizes_);
  const Buffer device = poisoned_on_device(layout.bytes);
  const Transfer transfer = engine.copy_pieces(to_device(device.data(), layout.offsets), CopyDirection::h2d,
                                               {.path = TransferPath::packed});
  transfer.synchronize();
  expect_pieces(read(device), layout.offsets);
  EXPECT_EQ(transfer.report().pieces, 1000u);
  EXPECT_LE(transfer.report().copies, 8u);
  EXPECT_EQ(transfer.bytes(), std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}));
}

TEST_P(PackedTest, ScatteredPiecesToTheDeviceAndBack) {
  TransferEngine engine(*device_, many_chunks());
  make_pieces(500, 3000, 2);
  std::vector<std::size_t> offsets(sizes_.size());
  std::vector<std::size_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::size_t at = 3;
  for (const std::size_t i : order) {
    offsets[i] = at;
    at += sizes_[i] + 300 + i % 7;
  }
  for (const TransferPath path : kPackedPaths) {
    SCOPED_TRACE(transfer_path_name(path));
    to_the_device_and_back(engine, path, offsets, at, path == TransferPath::packed ? 8 : 2 * sizes_.size());
  }
}

TEST_P(PackedTest, FewLargePiecesApart) {
  TransferEngine engine(*device_, many_chunks());
  for (const std::size_t count : {2u, 9u}) {
    sizes_.assign(count, 700001);
    host_offsets_.clear();
    std::vector<std::size_t> offsets;
    for (std::size_t i = 0; i < count; ++i) {
      host_offsets_.push_back(i * 700002);
      offsets.push_back((count - 1 - i) * 900000 + 1);
    }
    host_ = random_bytes(count * 700002, count);
    for (const TransferPath path : kPackedPaths) {
      SCOPED_TRACE(transfer_path_name(path));
      to_the_device_and_back(engine, path, offsets, count * 900000 + 300);
    }
  }
}

// Bytes between pieces belong to nobody up to the next multiple of 256; past it they belong to somebody.
TEST_P(PackedTest, WhatLiesBetweenPiecesStays) {
  TransferEngine engine(*device_);
  sizes_ = {700, 500, 1000};
  host_offsets_ = {0, 700, 1200};
  host_ = random_bytes(2200, 9);
  const std::vector<std::size_t> offsets{0, 1024, 1792};
  for (const TransferPath path : kPackedPaths) {
    const Buffer device = poisoned_on_device(4096);
    engine.copy_pieces(to_device(device.data(), offsets), CopyDirection::h2d, {.path = path}).synchronize();
    expect_pieces(read(device), offsets);
  }
}

TEST_P(PackedTest, StagedPiecesAreOneStreamOfChunks) {
  TransferEngine engine(*device_, {.threads = 3, .chunk_bytes = 256 * 1024, .slots = 2});
  make_pieces(2000, 5000, 8);
  const PackedLayout layout = PackedLayout::of(sizes_);
  const Buffer device = poisoned_on_device(layout.bytes);
  const Transfer pieces = engine.copy_pieces(to_device(device.data(), layout.offsets), CopyDirection::h2d,
                                             {.path = TransferPath::staged});
  pieces.synchronize();
  expect_pieces(read(device), layout.offsets);
  const std::vector<std::byte> flat(layout.bytes);
  const Transfer whole = engine.copy(device.data(), flat.data(), flat.size(), {.path = TransferPath::staged});
  whole.synchronize();
  EXPECT_LE(pieces.report().copies, whole.report().copies + 1) << "chunks do not end where pieces do";
  EXPECT_GE(pieces.report().copies + 1, whole.report().copies);
  EXPECT_EQ(pieces.report().path, TransferPath::staged);
  EXPECT_EQ(pieces.report().pieces, 2000u);
}

TEST_P(PackedTest, NoStagedCopyReadsTwoPieces) {
  TransferEngine engine(*device_, {.threads = 3, .chunk_bytes = 256 * 1024, .slots = 2});
  make_pieces(40, 4096, 9);
  const PackedLayout layout = PackedLayout::of(sizes_);
  const Buffer device = poisoned_on_device(layout.bytes);
  std::vector<std::byte> back(host_.size(), kPoison);
  const Transfer returned = engine.copy_pieces(from_device(device.data(), layout.offsets, back),
                                               CopyDirection::d2h, {.path = TransferPath::staged});
  returned.synchronize();
  const auto empty = static_cast<std::size_t>(std::ranges::count(sizes_, 0u));
  EXPECT_GE(returned.report().copies, sizes_.size() - empty) << "pieces may be allocations of their own";
}

TEST_P(PackedTest, MoreThanOneRound) {
  TransferEngine engine(*device_, many_chunks());
  const auto source = random_bytes((70 << 20) + 5, 4);
  const Buffer device = poisoned_on_device(source.size());
  engine.copy(device.data(), source.data(), source.size(), {.path = TransferPath::packed}).synchronize();
  std::vector<std::byte> back(source.size(), kPoison);
  engine.copy(back.data(), device.data(), source.size(), {.path = TransferPath::packed}).synchronize();
  EXPECT_EQ(first_difference(back, source), -1);
}

TEST_P(PackedTest, ScatteredInMoreThanOneRound) {
  TransferEngine engine(*device_, many_chunks());
  make_pieces(3000, 28000, 5);
  std::vector<std::size_t> offsets;
  std::size_t at = 0;
  for (const std::size_t size : sizes_) {
    offsets.push_back(at);
    at = align_up(at + size, 256) + 512;
  }
  const Buffer device = poisoned_on_device(at);
  engine.copy_pieces(to_device(device.data(), offsets), CopyDirection::h2d, {.path = TransferPath::packed})
      .synchronize();
  expect_pieces(read(device), offsets);
}

TEST_P(PackedTest, PiecesOnTheDevice) {
  TransferEngine engine(*device_);
  make_pieces(300, 5000, 6);
  const Buffer source = on_device(host_);
  const PackedLayout layout = PackedLayout::of(sizes_, 16);
  const Buffer device = poisoned_on_device(layout.bytes);
  std::vector<TransferPiece> pieces;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    pieces.push_back({source.data() + host_offsets_[i], device.data() + layout.offsets[i], sizes_[i]});
  }
  engine.copy_pieces(pieces, CopyDirection::d2d, {.path = TransferPath::packed}).synchronize();
  expect_pieces(read(device), layout.offsets);
}

TEST_P(PackedTest, DirectPiecesGoOneByOne) {
  TransferEngine engine(*device_);
  make_pieces(40, 5000, 7);
  const PackedLayout layout = PackedLayout::of(sizes_);
  const Buffer device = poisoned_on_device(layout.bytes);
  const Transfer transfer = engine.copy_pieces(to_device(device.data(), layout.offsets), CopyDirection::h2d,
                                               {.path = TransferPath::direct});
  transfer.synchronize();
  expect_pieces(read(device), layout.offsets);
  GatedStream user(*device_);
  const Buffer later = poisoned_on_device(layout.bytes);
  const Transfer held = engine.copy_pieces(to_device(later.data(), layout.offsets), CopyDirection::h2d,
                                           {.path = TransferPath::direct, .after = &user.stream()});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(held.query());
  user.open();
  held.synchronize();
  expect_pieces(read(later), layout.offsets);
}

TEST_P(PackedTest, RefusesOverlapNullAndStagingOnTheDevice) {
  TransferEngine engine(*device_);
  std::vector<std::byte> host(4096);
  const Buffer device = memory_->allocate(8192);
  const std::vector<TransferPiece> overlap{{host.data(), device.data() + 1000, 100},
                                           {host.data(), device.data() + 901, 100}};
  for (const TransferPath path : kPackedPaths) {
    EXPECT_THROW((void)engine.copy_pieces(overlap, CopyDirection::h2d, {.path = path}), InvalidArgument);
  }
  const std::vector<TransferPiece> null{{host.data(), device.data(), 100},
                                        {nullptr, device.data() + 901, 100}};
  for (const TransferPath path : kPackedPaths) {
    EXPECT_THROW((void)engine.copy_pieces(null, CopyDirection::h2d, {.path = path}), InvalidArgument);
  }
  const std::vector<TransferPiece> good{{device.data() + 4096, device.data(), 100}};
  EXPECT_THROW((void)engine.copy_pieces(good, CopyDirection::d2d, {.path = TransferPath::staged}),
               InvalidArgument);
  EXPECT_THROW((void)PackedLayout::of(std::vector<std::size_t>{1, 2}, 24), InvalidArgument);
  EXPECT_THROW((void)PackedLayout::of(std::vector<std::size_t>{~std::size_t{0} - 10, 2}), InvalidArgument);
}

// If nobody synchronizes, another thread than the requester's copies the bytes to the host's ends.
TEST_P(PackedTest, ToTheHostEndsWithoutAnybodyWaiting) {
  TransferEngine engine(*device_, many_chunks());
  const auto bytes = random_bytes(1 << 20, 8);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> back(bytes.size(), kPoison);
  const Transfer transfer =
      engine.copy(back.data(), source.data(), bytes.size(), {.path = TransferPath::packed});
  while (!transfer.query()) std::this_thread::yield();
  EXPECT_EQ(first_difference(back, bytes), -1);
}

}  // namespace
}  // namespace penstock::testing
