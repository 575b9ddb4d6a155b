#include "feed_fields.hpp"

#include "commands.hpp"

#include <penstock/data/readers.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Dataset make_dataset() {
  return Dataset(
      {read_array({.name = "images", .dtype = DType::uint8, .shape = {3, 2}}, std::vector<std::uint8_t>(12)),
       read_array({.name = "boxes", .dtype = DType::int64, .shape = {4}}, std::vector<std::int64_t>(8)),
       read_array({.name = "depth", .dtype = DType::int16, .shape = {2}}, std::vector<std::int16_t>(4)),
       read_array({.name = "labels", .dtype = DType::uint8, .shape = {}}, std::vector<std::uint8_t>(2))});
}

TEST(FeedFields, WithoutWishesNothingChanges) {
  EXPECT_THAT(field_options(make_dataset(), {}, {}, {}), IsEmpty());
}

TEST(FeedFields, AWishWithoutAFieldIsForAllThatCanWidenButScalars) {
  const auto fields = field_options(make_dataset(), {"float32"}, {"0.5"}, {});
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].name, "images");
  EXPECT_EQ(fields[1].name, "depth");
  for (const FieldOptions& field : fields) {
    EXPECT_EQ(field.to, DType::float32);
    EXPECT_THAT(field.scale, ElementsAre(0.5F));
    EXPECT_THAT(field.shift, IsEmpty());
  }
}

TEST(FeedFields, AWishWithAFieldPrevailsWhereverItStands) {
  const auto fields = field_options(make_dataset(), {"images=float16", "labels=int32", "float32"},
                                    {"images=1,2.5e-1,-3", "4"}, {"depth=-1"});
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].to, DType::float16);
  EXPECT_THAT(fields[0].scale, ElementsAre(1.F, 0.25F, -3.F));
  EXPECT_EQ(fields[1].to, DType::float32);
  EXPECT_THAT(fields[1].scale, ElementsAre(4.F));
  EXPECT_THAT(fields[1].shift, ElementsAre(-1.F));
  EXPECT_EQ(fields[2].name, "labels");
  EXPECT_EQ(fields[2].to, DType::int32);
  EXPECT_THAT(fields[2].scale, IsEmpty()) << "it is no float";
}

using Texts = std::vector<std::string>;

void expect_refusal(const Texts& to, const Texts& scale, const std::string& words) {
  EXPECT_THAT([&] { static_cast<void>(field_options(make_dataset(), to, scale, {})); },
              ThrowsMessage<UsageError>(HasSubstr(words)));
}

TEST(FeedFields, RefusesWhatCannotBe) {
  expect_refusal({"abacus"}, {}, "abacus");
  expect_refusal({"pictures=float32"}, {}, "images");
  expect_refusal({"boxes=float32"}, {}, "int64 cannot become float32");
  expect_refusal({"int8"}, {}, "images is uint8 3x2");
  expect_refusal({"images="}, {}, "FIELD=VALUE");
  expect_refusal({"=float32"}, {}, "FIELD=VALUE");
  expect_refusal({}, {"0.5"}, "--to");
  expect_refusal({"labels=int32"}, {"labels=2"}, "--to");
  for (const char* number : {"images=", "images=x", "1,,2", "1,", "0.5x", "nan", "inf", "1e999"}) {
    expect_refusal({"float32"}, {number}, "--scale");
  }
}

}  // namespace
}  // namespace penstock::cli
