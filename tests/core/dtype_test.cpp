#include <penstock/core/dtype.hpp>
#include <penstock/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace penstock {
namespace {

constexpr DType kAll[] = {DType::boolean,  DType::uint8,   DType::int8,   DType::uint16, DType::int16,
                          DType::uint32,   DType::int32,   DType::uint64, DType::int64,  DType::float16,
                          DType::bfloat16, DType::float32, DType::float64};

TEST(DTypeTest, NamesAreUniqueAndRoundTrip) {
  std::set<std::string_view> names;
  for (const DType dtype : kAll) {
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_name(DType::boolean), "bool");
  EXPECT_EQ(dtype_name(DType::bfloat16), "bfloat16");
}

TEST(DTypeTest, Sizes) {
  EXPECT_EQ(dtype_bytes(DType::boolean), 1u);
  EXPECT_EQ(dtype_bytes(DType::int8), 1u);
  EXPECT_EQ(dtype_bytes(DType::bfloat16), 2u);
  EXPECT_EQ(dtype_bytes(DType::float16), 2u);
  EXPECT_EQ(dtype_bytes(DType::float32), 4u);
  EXPECT_EQ(dtype_bytes(DType::uint64), 8u);
  EXPECT_EQ(dtype_bytes(DType::float64), 8u);
}

TEST(DTypeTest, UnknownNameListsTheKnown) {
  try {
    static_cast<void>(parse_dtype("float8"));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("float8"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("bfloat16"));
  }
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(element_count({}), 1u);
  EXPECT_EQ(element_count({3, 224, 224}), 150528u);
  EXPECT_EQ(element_count({5, 0, 7}), 0u);
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(element_count({kHuge}), kHuge);
  EXPECT_THROW(static_cast<void>(element_count({kHuge, 2})), InvalidArgument);
}

TEST(ShapeTest, Formats) {
  EXPECT_EQ(format_shape({3, 224, 224}), "3x224x224");
  EXPECT_EQ(format_shape({7}), "7");
  EXPECT_EQ(format_shape({}), "scalar");
}

}  // namespace
}  // namespace penstock
