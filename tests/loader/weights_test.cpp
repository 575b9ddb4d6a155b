#include "data/weight_files.hpp"
#include "transfer/engine_fixture.hpp"
#include "transfer/group_fixture.hpp"

#include <penstock/loader/load_weights.hpp>

#include <algorithm>
#include <filesystem>

namespace penstock::testing {
namespace {

class LoadWeightsTest : public EngineTest {
 protected:
  test::TempDirectory directory_;
};
PENSTOCK_DEVICE_SUITE(LoadWeightsTest);

TEST_P(LoadWeightsTest, EveryTensorArrivesAtItsPlace) {
  std::vector<test::Weight> weights{{"bias", "BF16", {3}},   {"scalar", "F64", {}},
                                    {"none", "F32", {0, 7}}, {"large", "F32", {700, 1001}},
                                    {"flags", "BOOL", {13}}, {"last", "U8", {70'001}}};
  test::fill_randomly(weights, 1);
  const WeightFile file(directory_.write("model.safetensors", test::safetensors(weights)));
  for (const TransferOptions& options : {many_chunks(), many_movers(), TransferOptions{}}) {
    TransferEngine engine(*device_, options);
    const Buffer device = poisoned_on_device(file.bytes());
    load_weights(engine, file, device.data()).synchronize();
    std::vector<std::byte> expected(file.bytes());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::ranges::copy(weights[i].data,
                        expected.begin() + static_cast<std::ptrdiff_t>(file.tensors()[i].offset));
    }
    EXPECT_EQ(first_difference(read(device), expected), -1);
  }
}

TEST_P(LoadWeightsTest, ACutMeanwhileIsAnErrorAndTheEngineGoesOn) {
  std::vector<test::Weight> weights{{"a", "U8", {1'000'000}}, {"b", "U8", {500'000}}};
  test::fill_randomly(weights, 2);
  const auto path = directory_.write("model.safetensors", test::safetensors(weights));
  const WeightFile file(path);
  TransferEngine engine(*device_, many_chunks());
  const Buffer device = poisoned_on_device(file.bytes());
  std::filesystem::resize_file(path, 1'200'000);
  // Kept: the thread sanitizer does not see the count by which the last owner frees the error.
  const Transfer cut = load_weights(engine, file, device.data());
  test::expect_error<Error>([&] { return cut.synchronize(), 0; },
                            {path.string(), "ends at byte 1200000", "'b'"});
  static_cast<void>(directory_.write("model.safetensors", test::safetensors(weights)));
  load_weights(engine, file, device.data()).synchronize();
  EXPECT_EQ(first_difference(read(device.data(), 1'000'000, device_->create_stream()), weights[0].data), -1);
}

class LoadWeightsToAGroupTest : public GroupTest {
 protected:
  test::TempDirectory directory_;
};
PENSTOCK_GROUP_SUITE(LoadWeightsToAGroupTest);

TEST_P(LoadWeightsToAGroupTest, EveryTensorArrivesAtItsPlace) {
  std::vector<test::Weight> weights{
      {"bias", "BF16", {3}}, {"large", "F32", {700, 1001}}, {"last", "U8", {7}}};
  test::fill_randomly(weights, 1);
  const WeightFile file(directory_.write("model.safetensors", test::safetensors(weights)));
  std::vector<std::byte> expected(file.bytes());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    std::ranges::copy(weights[i].data,
                      expected.begin() + static_cast<std::ptrdiff_t>(file.tensors()[i].offset));
  }
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  for (std::size_t receiver = 0; receiver < size(); ++receiver) {
    const auto buffers = poisoned_for_all(file.bytes());
    load_weights(engine, receiver, file, buffers[receiver].data()).synchronize();
    EXPECT_EQ(first_difference(read(receiver, buffers[receiver], file.bytes()), expected), -1);
  }
  const auto buffers = poisoned_for_all(file.bytes());
  expect_everywhere(load_weights(engine, file, places(buffers)), buffers, expected);
}

}  // namespace
}  // namespace penstock::testing
