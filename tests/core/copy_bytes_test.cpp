#include "support/bytes.hpp"

#include <penstock/core/copy_bytes.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace penstock {
namespace {

using penstock::testing::first_difference;
using penstock::testing::kPoison;
using penstock::testing::random_bytes;

class CopyBytes : public ::testing::TestWithParam<StoreKind> {};

TEST_P(CopyBytes, AnySizeAtAnyAlignmentAndNothingElse) {
  constexpr std::size_t kRoom = 40000;
  const auto source = random_bytes(kRoom, 1);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 4095, 4096, 4097, 4159, 5000, 8191, 30001}) {
    for (const std::size_t from : {0, 1, 7, 32, 63}) {
      for (const std::size_t to : {0, 1, 31, 32, 63, 64}) {
        std::vector<std::byte> destination(kRoom, kPoison);
        copy_bytes(destination.data() + to, source.data() + from, bytes, GetParam());
        std::vector<std::byte> expected(kRoom, kPoison);
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        ASSERT_EQ(first_difference(expected, destination), -1) << bytes << " from " << from << " to " << to;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, CopyBytes, ::testing::Values(StoreKind::cached, StoreKind::streaming),
                         [](const auto& stores) {
                           return stores.param == StoreKind::cached ? "cached" : "streaming";
                         });

TEST(CopyBytesNull, ZeroBytesMayBeNull) {
  copy_bytes(nullptr, nullptr, 0, StoreKind::cached);
  copy_bytes(nullptr, nullptr, 0, StoreKind::streaming);
}

}  // namespace
}  // namespace penstock
