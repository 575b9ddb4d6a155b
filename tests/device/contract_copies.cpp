#include "device/contract_suite.hpp"

#include <algorithm>
#include <random>

namespace penstock::testing {

namespace {

constexpr std::size_t kSizes[] = {1, 2, 3, 7, 8, 15, 64, 255, 4096, 4097, 65535, 65536, 65537, 1000003};

TEST_P(Contract, CopiesOfPinnedMemoryBothWays) {
  for (const std::size_t bytes : kSizes) {
    const auto data = random_bytes(bytes, bytes);
    PinnedBytes source(device(), bytes);
    PinnedBytes result(device(), bytes);
    DeviceBytes first(device(), bytes);
    DeviceBytes second(device(), bytes);
    source.assign(data);
    stream().fill(second.data(), 0xEE, bytes);
    stream().copy(first.data(), source.data(), bytes, CopyDirection::h2d);
    stream().copy(second.data(), first.data(), bytes, CopyDirection::d2d);
    stream().copy(result.data(), second.data(), bytes, CopyDirection::d2h);
    stream().synchronize();
    EXPECT_TRUE(same_bytes(data, result.bytes())) << bytes;
  }
}

TEST_P(Contract, CopiesAtOddPlacesTouchNothingElse) {
  constexpr std::size_t kRoom = 5000;
  const auto data = random_bytes(kRoom, 8);
  PinnedBytes source(device(), kRoom);
  PinnedBytes result(device(), kRoom);
  DeviceBytes middle(device(), kRoom);
  source.assign(data);
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const std::size_t bytes = random() % 1000;
    const std::size_t from = random() % (kRoom - bytes);
    const std::size_t at = random() % (kRoom - bytes);
    const std::size_t to = random() % (kRoom - bytes);
    std::memset(result.data(), 0xA5, kRoom);
    std::vector<std::byte> expected(kRoom, std::byte{0xA5});
    std::memcpy(expected.data() + to, data.data() + from, bytes);
    stream().copy(middle.data() + at, source.data() + from, bytes, CopyDirection::h2d);
    stream().copy(result.data() + to, middle.data() + at, bytes, CopyDirection::d2h);
    stream().synchronize();
    ASSERT_TRUE(same_bytes(expected, result.bytes())) << bytes << " from " << from << " to " << to;
  }
}

TEST_P(Contract, CopyOfNothingIsNothing) {
  PinnedBytes pinned(device(), 16);
  DeviceBytes middle(device(), 16);
  const auto before = random_bytes(16, 9);
  upload(middle.data(), before);
  stream().copy(middle.data(), pinned.data(), 0, CopyDirection::h2d);
  stream().copy(pinned.data(), middle.data(), 0, CopyDirection::d2h);
  stream().copy(middle.data(), middle.data(), 0, CopyDirection::d2d);
  stream().fill(middle.data(), 1, 0);
  stream().copy_pieces(nullptr, 0);
  stream().synchronize();
  EXPECT_TRUE(same_bytes(before, download(middle.data(), 16)));
  EXPECT_TRUE(same_bytes(std::vector<std::byte>(16, kPoison), pinned.bytes()));
}

TEST_P(Contract, CopiesOfEachPieceTouchNothingElse) {
  constexpr std::size_t kRoom = 300000;
  const auto data = random_bytes(kRoom, 20);
  PinnedBytes source(device(), kRoom);
  PinnedBytes result(device(), kRoom);
  DeviceBytes middle(device(), kRoom);
  source.assign(data);
  std::mt19937 random(2);
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{300}, std::size_t{1000}}) {
    std::vector<CopyPiece> there;
    std::vector<CopyPiece> back;
    std::vector<std::byte> expected(kRoom, std::byte{0xA5});
    std::vector<std::byte> expected_there(kRoom, std::byte{0x5A});
    stream().fill(middle.data(), 0x5A, kRoom);
    std::memset(result.data(), 0xA5, kRoom);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t room = kRoom / count;
      const std::size_t bytes = random() % room;
      const std::size_t from = random() % (kRoom - bytes);
      const std::size_t at = i * room + random() % (room - bytes);
      there.push_back({source.data() + from, middle.data() + at, bytes});
      back.push_back({middle.data() + at, result.data() + at, bytes});
      std::memcpy(expected.data() + at, data.data() + from, bytes);
      std::memcpy(expected_there.data() + at, data.data() + from, bytes);
    }
    stream().copy_each(there, CopyDirection::h2d);
    stream().copy_each(back, CopyDirection::d2h);
    there.assign(there.size(), {});
    stream().synchronize();
    ASSERT_TRUE(same_bytes(expected, result.bytes())) << count;
    ASSERT_TRUE(same_bytes(expected_there, download(middle.data(), kRoom))) << count;
  }
}

TEST_P(Contract, CopiesOfEachPieceAreInTheStreamsOrder) {
  constexpr std::size_t kPieces = 16;
  constexpr std::size_t kBytes = 70000;
  constexpr std::size_t kRounds = 4;
  PinnedBytes source(device(), kRounds * kPieces * kBytes);
  PinnedBytes result(device(), kRounds * kPieces * kBytes);
  DeviceBytes slot(device(), kPieces * kBytes);
  const auto data = random_bytes(kRounds * kPieces * kBytes, 21);
  source.assign(data);
  const Stream other = device().create_stream();
  Event done = device().create_event();
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::vector<CopyPiece> pieces;
    for (std::size_t i = 0; i < kPieces; ++i) {
      pieces.push_back({source.data() + (round * kPieces + i) * kBytes, slot.data() + i * kBytes, kBytes});
    }
    stream().copy_each(pieces, CopyDirection::h2d);
    done.record(stream());
    other.wait(done);
    other.copy(result.data() + round * kPieces * kBytes, slot.data(), kPieces * kBytes, CopyDirection::d2h);
    done.record(other);
    stream().wait(done);
  }
  other.synchronize();
  EXPECT_TRUE(same_bytes(data, result.bytes()));
}

TEST_P(Contract, CopiesOfEachPieceGoOnTheDefaultStreamToo) {
  PinnedBytes source(device(), 1000);
  DeviceBytes there(device(), 1000);
  const auto data = random_bytes(1000, 22);
  source.assign(data);
  const CopyPiece pieces[] = {{source.data(), there.data(), 400},
                              {source.data() + 400, there.data() + 400, 600}};
  backend().copy_each(pieces, CopyDirection::h2d, nullptr);
  backend().stream_synchronize(nullptr);
  EXPECT_TRUE(same_bytes(data, download(there.data(), 1000)));
  const CopyPiece nowhere[] = {{source.data(), nullptr, 8}};
  EXPECT_THROW(stream().copy_each(nowhere, CopyDirection::h2d), Error);
}

TEST_P(Contract, PageableSourceMayChangeAfterTheCall) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1000}, std::size_t{65536}, std::size_t{3000001}}) {
    const auto data = random_bytes(bytes, bytes);
    DeviceBytes middle(device(), bytes);
    {
      std::vector<std::byte> source = data;
      stream().copy(middle.data(), source.data(), bytes, CopyDirection::h2d);
      std::fill(source.begin(), source.end(), std::byte{0});
    }
    EXPECT_TRUE(same_bytes(data, download(middle.data(), bytes))) << bytes;
  }
}

TEST_P(Contract, PageableDestinationIsWholeAfterTheCall) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{3000001}}) {
    const auto data = random_bytes(bytes, bytes);
    DeviceBytes middle(device(), bytes);
    upload(middle.data(), data);
    std::vector<std::byte> result(bytes, kPoison);
    stream().copy(result.data(), middle.data(), bytes, CopyDirection::d2h);
    EXPECT_TRUE(same_bytes(data, result)) << bytes;
  }
}

TEST_P(Contract, PageableCopiesKeepTheStreamsOrder) {
  const auto first = random_bytes(3000, 10);
  const auto second = random_bytes(3000, 11);
  PinnedBytes pinned(device(), 3000);
  DeviceBytes middle(device(), 3000);
  pinned.assign(first);
  stream().copy(middle.data(), pinned.data(), 3000, CopyDirection::h2d);
  stream().copy(middle.data(), second.data(), 3000, CopyDirection::h2d);
  std::vector<std::byte> result(3000, kPoison);
  stream().copy(result.data(), middle.data(), 3000, CopyDirection::d2h);
  EXPECT_TRUE(same_bytes(second, result));
}

TEST_P(Contract, ReuseInStreamOrderNeedsNoWait) {
  constexpr std::size_t kBytes = 70000;
  constexpr int kRounds = 8;
  PinnedBytes source(device(), kRounds * kBytes);
  PinnedBytes result(device(), kRounds * kBytes);
  DeviceBytes slot(device(), kBytes);
  const auto data = random_bytes(kRounds * kBytes, 12);
  source.assign(data);
  for (int round = 0; round < kRounds; ++round) {
    stream().copy(slot.data(), source.data() + round * kBytes, kBytes, CopyDirection::h2d);
    stream().copy(result.data() + round * kBytes, slot.data(), kBytes, CopyDirection::d2h);
  }
  stream().synchronize();
  EXPECT_TRUE(same_bytes(data, result.bytes()));
}

TEST_P(Contract, FillSetsExactlyItsRange) {
  DeviceBytes block(device(), 1000);
  upload(block.data(), std::vector<std::byte>(1000, std::byte{1}));
  stream().fill(block.data() + 13, 0xC7, 500);
  std::vector<std::byte> expected(1000, std::byte{1});
  std::fill_n(expected.begin() + 13, 500, std::byte{0xC7});
  EXPECT_TRUE(same_bytes(expected, download(block.data(), 1000)));
}

TEST_P(Contract, NullEndsAreRefused) {
  DeviceBytes block(device(), 16);
  PinnedBytes pinned(device(), 16);
  EXPECT_THROW(stream().copy(nullptr, pinned.data(), 16, CopyDirection::h2d), Error);
  EXPECT_THROW(stream().copy(block.data(), nullptr, 16, CopyDirection::h2d), Error);
  EXPECT_THROW(stream().copy(pinned.data(), nullptr, 16, CopyDirection::d2h), Error);
  EXPECT_THROW(stream().fill(nullptr, 0, 16), Error);
  const auto bytes = random_bytes(16, 13);
  upload(block.data(), bytes);
  EXPECT_TRUE(same_bytes(bytes, download(block.data(), 16)));
}

/// Makes random pieces of `source` at random distances in `destination`, and returns the expected bytes.
std::vector<std::byte> make_pieces(std::vector<CopyPiece>& pieces, std::byte* source, std::byte* destination,
                                   std::span<const std::byte> contents, std::size_t room) {
  std::mt19937 random(14);
  std::vector<std::byte> expected(room, std::byte{0xEE});
  std::size_t at = 0;
  while (true) {
    const std::size_t kind = random() % 10;
    const std::size_t bytes = kind == 0 ? 0 : kind < 8 ? random() % 200 : random() % 20000;
    at += random() % 40;
    if (at + bytes > room) break;
    const std::size_t from = random() % (contents.size() - bytes);
    pieces.push_back({source + from, destination + at, bytes});
    std::memcpy(expected.data() + at, contents.data() + from, bytes);
    at += bytes;
  }
  return expected;
}

TEST_P(Contract, PiecesScatterAnywhere) {
  constexpr std::size_t kRoom = 1 << 20;
  const auto contents = random_bytes(50000, 15);
  PinnedBytes source(device(), contents.size());
  DeviceBytes target(device(), kRoom);
  source.assign(contents);
  std::vector<CopyPiece> pieces;
  const auto expected = make_pieces(pieces, static_cast<std::byte*>(backend().device_address(source.data())),
                                    target.data(), contents, kRoom);
  ASSERT_GT(pieces.size(), 200u);
  PinnedBytes table(device(), pieces.size() * sizeof(CopyPiece));
  table.assign(bytes_of(pieces));
  stream().fill(target.data(), 0xEE, kRoom);
  stream().copy_pieces(static_cast<const CopyPiece*>(backend().device_address(table.data())), pieces.size());
  EXPECT_TRUE(same_bytes(expected, download(target.data(), kRoom)));
}

TEST_P(Contract, PiecesGatherBackToTheHost) {
  constexpr std::size_t kRoom = 1 << 19;
  const auto contents = random_bytes(50000, 16);
  DeviceBytes source(device(), contents.size());
  PinnedBytes target(device(), kRoom);
  upload(source.data(), contents);
  std::memset(target.data(), 0xEE, kRoom);
  std::vector<CopyPiece> pieces;
  const auto expected =
      make_pieces(pieces, source.data(), static_cast<std::byte*>(backend().device_address(target.data())),
                  contents, kRoom);
  DeviceBytes table(device(), pieces.size() * sizeof(CopyPiece));
  upload(table.data(), bytes_of(pieces));
  stream().copy_pieces(reinterpret_cast<const CopyPiece*>(table.data()), pieces.size());
  stream().synchronize();
  EXPECT_TRUE(same_bytes(expected, target.bytes()));
}

TEST_P(Contract, PiecesReadTheirTableWhenTheirTurnComes) {
  const auto contents = random_bytes(300, 17);
  PinnedBytes source(device(), contents.size());
  DeviceBytes target(device(), contents.size());
  PinnedBytes table(device(), sizeof(CopyPiece));
  source.assign(contents);
  Gate gate(device());
  gate.hold(stream());
  stream().copy_pieces(static_cast<const CopyPiece*>(backend().device_address(table.data())), 1);
  *table.as<CopyPiece>() = {backend().device_address(source.data()), target.data(), contents.size()};
  gate.open();
  EXPECT_TRUE(same_bytes(contents, download(target.data(), contents.size())));
}

}  // namespace

}  // namespace penstock::testing
