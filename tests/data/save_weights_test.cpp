#include "core/shared/replace_file.hpp"
#include "data/support.hpp"
#include "data/weight_files.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/save_weights.hpp>
#include <penstock/data/weights.hpp>

#include <gmock/gmock.h>

#include <cstring>

namespace penstock {
namespace {

using test::Weight;
using ::testing::HasSubstr;

std::vector<NewWeight> described(const std::vector<Weight>& weights) {
  std::vector<NewWeight> entries;
  for (const Weight& weight : weights) entries.push_back({weight.name, weight.type, weight.shape});
  return entries;
}

/// The file's bytes, over poison.
std::vector<std::byte> filled(const WeightFileLayout& layout, const std::vector<Weight>& weights) {
  std::vector<std::byte> file(layout.bytes, std::byte{0xA5});
  std::memcpy(file.data(), layout.head.data(), layout.head.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].data.empty()) continue;
    std::memcpy(file.data() + layout.offsets[i], weights[i].data.data(), weights[i].data.size());
  }
  return file;
}

class SaveWeights : public ::testing::Test {
 protected:
  test::TempDirectory directory_;
};

TEST_F(SaveWeights, ComeBackAsTheyWere) {
  std::vector<Weight> weights{
      {"bytes", "U8", {3}},   {"wide", "F64", {3, 5}},    {"flags", "BOOL", {7}},
      {"half", "F16", {5}},   {"brain", "BF16", {1}},     {"scalar", "F32", {}},
      {"none", "I64", {0}},   {"i8", "I8", {1}},          {"i16", "I16", {3}},
      {"u16", "U16", {1}},    {"i32", "I32", {3}},        {"u32", "U32", {1}},
      {"u64", "U64", {1}},    {"eight", "F8_E4M3", {2}},  {"e5", "F8_E5M2", {3}},
      {"e8", "F8_E8M0", {1}}, {"a \"quote\"", "U8", {1}}, {"\xc3\xa4.\n", "I64", {2, 2}}};
  test::fill_randomly(weights, 7);
  const WeightFileLayout layout = lay_out_weights(described(weights), {{"format", "pt"}, {"step", "12"}});
  const std::filesystem::path path = directory_.path() / "model.safetensors";
  replace_file(path, filled(layout, weights));

  const WeightFile file(path);
  EXPECT_EQ(file.tensors().size(), weights.size());
  std::vector<std::byte> block(file.bytes());
  file.read(0, block);
  for (const Weight& weight : weights) {
    const auto found = std::ranges::find(file.tensors(), weight.name, &WeightTensor::name);
    ASSERT_NE(found, file.tensors().end()) << weight.name;
    EXPECT_EQ(found->type, weight.type);
    EXPECT_EQ(found->shape, weight.shape);
    EXPECT_TRUE(std::ranges::equal(std::span(block).subspan(found->offset, found->bytes), weight.data));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t elements = std::max<std::size_t>(element_count(weights[i].shape), 1);
    EXPECT_EQ(layout.offsets[i] % std::max<std::size_t>(weights[i].data.size() / elements, 1), 0U);
  }
  EXPECT_THAT(layout.head, HasSubstr(R"("__metadata__":{"format":"pt","step":"12"})"));
  EXPECT_EQ(layout.head.size(), 4096U);
}

TEST_F(SaveWeights, MayBeNone) {
  const WeightFileLayout layout = lay_out_weights({});
  EXPECT_EQ(layout.head, std::string("\xF8\x0F\0\0\0\0\0\0{}", 10) + std::string(4086, ' '));
  EXPECT_EQ(layout.bytes, 4096U);
  replace_file(directory_.path() / "none", std::as_bytes(std::span(layout.head)));
  EXPECT_TRUE(WeightFile(directory_.path() / "none").tensors().empty());
}

TEST_F(SaveWeights, EachTypeHasItsName) {
  EXPECT_EQ(weight_type(DType::boolean), "BOOL");
  EXPECT_EQ(weight_type(DType::bfloat16), "BF16");
  EXPECT_EQ(weight_type(DType::float64), "F64");
  EXPECT_EQ(weight_type(DType::uint16), "U16");
}

TEST_F(SaveWeights, WhatNoReaderTakesIsRefused) {
  const auto expect_refused = [](const std::vector<NewWeight>& weights, const char* why) {
    try {
      (void)lay_out_weights(weights);
      ADD_FAILURE() << why;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  expect_refused({{"__metadata__", "F32", {1}}}, "'__metadata__'");
  expect_refused({{"a", "F32", {1}}, {"b", "F32", {}}, {"a", "U8", {}}}, "two tensors are named 'a'");
  expect_refused({{"a", "C128", {1}}}, "'a': penstock writes no type 'C128'");
  expect_refused({{"a", "F4", {3}}}, "'a' does not fill whole bytes");
  expect_refused({{"\xff", "F32", {1}}}, "UTF-8");
  expect_refused({{"a", "F32", {std::size_t{1} << 62, 2}}}, "'a' is too large");
  expect_refused({{"a", "U8", {std::size_t{1} << 62}}, {"b", "U8", {std::size_t{1} << 62}}},
                 "'b' is too large");
  expect_refused({{std::string(100'000'000, 'x'), "U8", {1}}}, "save to several files");
}

}  // namespace
}  // namespace penstock
