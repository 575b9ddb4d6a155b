#include "feed_fields.hpp"

#include "commands.hpp"
#include "support/matchers.hpp"

#include <penstock/data/readers.hpp>

#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

using ::testing::ThrowsMessage;

Dataset make_dataset() {
  return Dataset(
      {read_array({.name = "images", .dtype = DType::uint8, .shape = {3, 2}}, std::vector<std::uint8_t>(12)),
       read_array({.name = "boxes", .dtype = DType::int64, .shape = {4}}, std::vector<std::int64_t>(8)),
       read_array({.name = "depth", .dtype = DType::int16, .shape = {2}}, std::vector<std::int16_t>(4)),
       read_array({.name = "labels", .dtype = DType::uint8, .shape = {}}, std::vector<std::uint8_t>(2))});
}

TEST(FeedFields, WithoutWishesNothingChanges) { EXPECT_THAT(field_options(make_dataset(), {}), IsEmpty()); }

TEST(FeedFields, AWishWithoutAFieldIsForAllThatCanWidenButScalars) {
  const auto fields = field_options(make_dataset(), {"float32"});
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].name, "depth");
  EXPECT_EQ(fields[1].name, "images");
  for (const FieldOptions& field : fields) EXPECT_EQ(field.to, DType::float32);
}

TEST(FeedFields, AWishWithAFieldPrevailsWhereverItStands) {
  const auto fields = field_options(make_dataset(), {"images=float16", "labels=int32", "float32"});
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].to, DType::float32);
  EXPECT_EQ(fields[1].to, DType::float16);
  EXPECT_EQ(fields[2].name, "labels");
  EXPECT_EQ(fields[2].to, DType::int32);
}

void expect_refusal(const std::string& to, const std::string& words) {
  EXPECT_THAT([&] { static_cast<void>(field_options(make_dataset(), {to})); },
              ThrowsMessage<UsageError>(HasSubstr(words)));
}

TEST(FeedFields, RefusesWhatCannotBe) {
  expect_refusal("abacus", "abacus");
  expect_refusal("int8", "images is uint8 3x2");
  expect_refusal("images=", "FIELD=TYPE");
  expect_refusal("=float32", "FIELD=TYPE");
}

}  // namespace
}  // namespace penstock::cli
