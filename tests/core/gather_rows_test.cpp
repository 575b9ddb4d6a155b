#include "core/shared/gather_rows.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace penstock {
namespace {

TEST(RowsOfPiece, GiveEachThreadSeveralPieces) {
  for (const std::size_t bytes : {64U, 256U, 1024U}) {
    for (const std::size_t threads : {1U, 8U, 14U}) {
      const std::size_t rows = 256 * 4 * threads;
      EXPECT_GE(rows / rows_of_piece(rows, bytes, threads), 4 * threads) << bytes << " bytes";
    }
  }
}

TEST(RowsOfPiece, AreNoLessThanIsWorthHandingOver) {
  EXPECT_EQ(rows_of_piece(100, 8, 8), 256);
  EXPECT_EQ(rows_of_piece(100, 1024, 8), 16);
}

TEST(RowsOfPiece, AreNoMoreThanOthersShouldWaitFor) {
  EXPECT_EQ(rows_of_piece(1'000'000, 8, 8), 1024);
  EXPECT_EQ(rows_of_piece(1'000'000, 4096, 8), 64);
}

TEST(RowsOfPiece, AreAtLeastOne) {
  EXPECT_EQ(rows_of_piece(0, 1, 1), 256);
  EXPECT_EQ(rows_of_piece(3, std::size_t{1} << 30, 8), 1);
}

}  // namespace
}  // namespace penstock
