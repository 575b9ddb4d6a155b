#include "device/contract_suite.hpp"
#include "device/hash_word.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace penstock::testing {

namespace {

/// A hash of the first `bytes` of device memory, on its way.
class Hash {
 public:
  Hash(const Device& device, const Stream& stream, const DeviceBytes& memory, std::uint64_t bytes)
      : count_(HashRequest::sum_count(bytes)), sums_(device, (count_ + 1) * sizeof(HashSum)), past_(*end()) {
    stream.hash({.source = memory.data(),
                 .bytes = bytes,
                 .sums = static_cast<HashSum*>(device.device_address(sums_.data()))});
  }

  /// Once the stream's work is done.
  [[nodiscard]] HashSum whole() const {
    EXPECT_EQ(*end(), past_) << "a sum more than there are";
    HashSum whole;
    for (const HashSum* each = sums_.as<HashSum>(); each != end(); ++each) {
      whole.low += each->low;
      whole.high += each->high;
    }
    return whole;
  }

 private:
  [[nodiscard]] const HashSum* end() const { return sums_.as<HashSum>() + count_; }

  const std::size_t count_;
  const PinnedBytes sums_;
  const HashSum past_;
};

HashSum hash_of(const Device& device, const Stream& stream, const DeviceBytes& memory, std::uint64_t bytes) {
  const Hash hash(device, stream, memory, bytes);
  stream.synchronize();
  return hash.whole();
}

HashSum expected_hash(std::span<const std::byte> bytes) {
  HashSum sum;
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash_word(at / 8, word, sum.low, sum.high);
  }
  return sum;
}

TEST_P(Contract, HashesAreTheHostsForEverySize) {
  std::mt19937_64 random(4321);
  for (const std::size_t bytes : {0, 1, 7, 8, 9, 15, 16, 17, 31, 511, 4096, 16'401, 300'007}) {
    const std::size_t room = bytes + 64;
    const DeviceBytes memory(device(), room);
    const PinnedBytes sent(device(), room);
    for (std::byte& each : sent.bytes()) each = static_cast<std::byte>(random());
    stream().copy(memory.data(), sent.data(), room, CopyDirection::h2d);
    EXPECT_EQ(hash_of(device(), stream(), memory, bytes), expected_hash(sent.bytes().first(bytes))) << bytes;
  }
}

TEST_P(Contract, AHashChangesWithEachByteAndItsPlace) {
  constexpr std::size_t kBytes = 203;
  const DeviceBytes memory(device(), kBytes);
  stream().fill(memory.data(), 7, kBytes);
  const HashSum before = hash_of(device(), stream(), memory, kBytes);
  std::vector<HashSum> seen{before};
  for (std::size_t at = 0; at < kBytes; ++at) {
    stream().fill(memory.data() + at, 6, 1);
    const HashSum changed = hash_of(device(), stream(), memory, kBytes);
    for (const HashSum& other : seen) {
      EXPECT_NE(changed.low, other.low) << at;
      EXPECT_NE(changed.high, other.high) << at;
    }
    seen.push_back(changed);
    stream().fill(memory.data() + at, 7, 1);
  }
  EXPECT_EQ(hash_of(device(), stream(), memory, kBytes), before);
}

TEST_P(Contract, AHashIsTakenInTurn) {
  constexpr std::size_t kBytes = 100;
  const DeviceBytes memory(device(), kBytes);
  std::vector<std::byte> sevens(kBytes, std::byte{7});
  stream().fill(memory.data(), 7, kBytes);
  Gate gate(device());
  gate.hold(stream());
  const Hash before(device(), stream(), memory, kBytes);
  stream().fill(memory.data(), 8, kBytes);
  const Hash after(device(), stream(), memory, kBytes);
  gate.open();
  stream().synchronize();
  EXPECT_EQ(before.whole(), expected_hash(sevens));
  EXPECT_EQ(after.whole(), expected_hash(std::vector<std::byte>(kBytes, std::byte{8})));
}

TEST_P(Contract, WhatCannotBeHashedIsRefused) {
  const DeviceBytes memory(device(), 64);
  const PinnedBytes sums(device(), 1024);
  auto* const there = static_cast<HashSum*>(device().device_address(sums.data()));
  EXPECT_THROW(stream().hash({.source = memory.data() + 8, .bytes = 8, .sums = there}), InvalidArgument);
  EXPECT_THROW(stream().hash({.source = nullptr, .bytes = 8, .sums = there}), InvalidArgument);
  EXPECT_THROW(stream().hash({.source = memory.data(), .bytes = 8, .sums = nullptr}), InvalidArgument);
}

}  // namespace

}  // namespace penstock::testing
