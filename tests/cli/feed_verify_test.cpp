#include "feed_verify.hpp"

#include "cli/datasets.hpp"
#include "cli/shared/signals.hpp"
#include "feed_run.hpp"
#include "support/matchers.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/memory/pool.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace penstock::cli {
namespace {

using testing::random_values;

constexpr std::size_t kSamples = 50;
constexpr std::size_t kPixels = std::size_t{3} * 4 * 5;

struct Source {
  std::vector<std::uint8_t> images = random_values<std::uint8_t>(kSamples * kPixels, 1, 255);
  std::vector<std::int64_t> labels = random_values<std::int64_t>(kSamples, 2, 9);
  Dataset dataset{{read_array({.name = "images", .dtype = DType::uint8, .shape = {3, 4, 5}}, images),
                   read_array({.name = "labels", .dtype = DType::int64, .shape = {}}, labels)}};
};

/// The batch that a loader would deliver: `images` as float32 with a scale and shift for each channel (powers
/// of two, so that every way of computing is exact), and `labels` as they are.
struct Delivered {
  static constexpr std::array<float, 3> kScale{0.5F, 2, 0.25F};
  static constexpr std::array<float, 3> kShift{1, -8, 0.5F};

  Delivered(const Device& device, const Source& source, const std::vector<std::uint64_t>& indices)
      : pool(make_device_pool(device)), images(indices.size() * kPixels), labels(indices.size()) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      labels[i] = source.labels[indices[i]];
      for (std::size_t e = 0; e < kPixels; ++e) {
        const std::size_t channel = e / 20;
        images[i * kPixels + e] =
            static_cast<float>(source.images[indices[i] * kPixels + e]) * kScale[channel] + kShift[channel];
      }
    }
    fields = {put("images", DType::float32, {indices.size(), 3, 4, 5}, images),
              put("labels", DType::int64, {indices.size()}, labels)};
  }

  template <typename T>
  DeviceField put(const std::string& name, DType dtype, Shape shape, const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    Buffer& buffer = buffers.emplace_back(pool.allocate(bytes));
    std::memcpy(buffer.data(), values.data(), bytes);  // the host device's memory is the host's
    return {name, dtype, std::move(shape), buffer.data(), bytes};
  }

  Pool pool;
  std::vector<float> images;
  std::vector<std::int64_t> labels;
  std::vector<Buffer> buffers;
  std::vector<DeviceField> fields;
};

const std::vector<FieldOptions> kFields{{.name = "images",
                                         .to = DType::float32,
                                         .scale = {Delivered::kScale.begin(), Delivered::kScale.end()},
                                         .shift = {Delivered::kShift.begin(), Delivered::kShift.end()}}};

FeedPlan plan_of(const Device& device, const Dataset& dataset, const std::vector<FieldOptions>& fields,
                 std::uint64_t batch_size) {
  return Loader(dataset, device, {.batch_size = batch_size, .fields = fields}).plan();
}

std::vector<std::uint64_t> batch_indices(std::size_t batch, std::size_t size) {
  std::vector<std::uint64_t> indices(size);
  for (std::size_t i = 0; i < size; ++i) indices[i] = (batch * 17 + i * 7) % kSamples;
  return indices;
}

class VerifierOn : public ::testing::TestWithParam<const char*> {
 protected:
  Device device = Device::open(GetParam());
  Stream stream = device.create_stream();
  Source source;
};

TEST_P(VerifierOn, CountsWhatIsRight) {
  Verifier verifier(device, source.dataset, plan_of(device, source.dataset, kFields, 16));
  std::vector<std::unique_ptr<Delivered>> batches;
  for (std::size_t batch = 0; batch < 5; ++batch) {
    const auto indices = batch_indices(batch, batch == 4 ? 3 : 16);
    batches.push_back(std::make_unique<Delivered>(device, source, indices));
    verifier.check(0, batch, indices, batches.back()->fields, stream);
  }
  EXPECT_EQ(verifier.account().batches, 4u) << "the last one may still be on its way";
  verifier.finish();
  EXPECT_EQ(verifier.account().batches, 5u);
  EXPECT_EQ(verifier.account().samples, 67u);
  EXPECT_EQ(verifier.account().bytes, 67 * (kPixels * sizeof(float) + sizeof(std::int64_t)));
}

TEST_P(VerifierOn, NamesAByteThatIsWrong) {
  const auto indices = batch_indices(3, 16);
  for (const auto& [field, row, byte] : std::vector<std::array<std::size_t, 3>>{
           {0, 0, 0}, {0, 15, kPixels * 4 - 1}, {0, 7, 101}, {1, 0, 0}, {1, 15, 7}}) {
    Verifier verifier(device, source.dataset, plan_of(device, source.dataset, kFields, 16));
    Delivered good(device, source, indices);
    Delivered bad(device, source, indices);
    const std::size_t sample_bytes = bad.fields[field].bytes / indices.size();
    bad.fields[field].data[row * sample_bytes + byte] ^= std::byte{0x10};
    verifier.check(2, 3, indices, good.fields, stream);
    try {
      verifier.check(2, 4, indices, bad.fields, stream);
      verifier.finish();
      FAIL() << "a wrong byte went by";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("epoch 2, batch 4, sample " + std::to_string(indices[row])),
                                      HasSubstr("number " + std::to_string(row) + " of the batch"),
                                      HasSubstr("field " + bad.fields[field].name + ","),
                                      HasSubstr("byte " + std::to_string(byte) + " of the sample")));
    }
    EXPECT_EQ(verifier.account().batches, 1u);
  }
}

TEST_P(VerifierOn, NamesTheFirstOfManyChunks) {
  constexpr std::size_t kLarge = 700'000;
  std::vector<std::uint8_t> values = random_values<std::uint8_t>(8 * kLarge, 3, 255);
  const Dataset dataset{{read_array({.name = "x", .dtype = DType::uint8, .shape = {kLarge}}, values)}};
  Pool pool = make_device_pool(device);
  const Buffer buffer = pool.allocate(values.size());
  std::memcpy(buffer.data(), values.data(), values.size());
  buffer.data()[5 * kLarge + 4] ^= std::byte{1};
  buffer.data()[6 * kLarge] ^= std::byte{1};
  std::vector<std::uint64_t> indices(8);
  std::iota(indices.begin(), indices.end(), 0);
  const DeviceField field{"x", DType::uint8, {8, kLarge}, buffer.data(), buffer.size()};
  Verifier verifier(device, dataset, plan_of(device, dataset, {}, 8));
  verifier.check(0, 0, indices, {&field, 1}, stream);
  EXPECT_THAT(
      [&] { verifier.finish(); },
      ::testing::ThrowsMessage<Error>(HasSubstr("sample 5 (number 5 of the batch), field x, byte 4")));
}

TEST_P(VerifierOn, RefusesWhatWasNotPromised) {
  const auto indices = batch_indices(0, 16);
  const auto refuses = [&](const std::vector<FieldOptions>& options, const std::vector<DeviceField>& fields,
                           const std::vector<std::uint64_t>& samples) {
    Verifier verifier(device, source.dataset, plan_of(device, source.dataset, options, 16));
    EXPECT_THROW(verifier.check(0, 0, samples, fields, stream), Error);
  };
  const Delivered delivered(device, source, indices);
  refuses({}, delivered.fields, indices);
  refuses(kFields, {delivered.fields[0]}, indices);
  refuses(kFields, {delivered.fields[1], delivered.fields[0]}, indices);
  refuses(kFields, delivered.fields, batch_indices(0, 15));
  auto fewer = delivered.fields;
  fewer[0].bytes -= 4;
  refuses(kFields, fewer, indices);
}

FeedAccount feed_and_verify(const Device& device, const Dataset& fed, const Dataset& expected,
                            std::string* error) {
  const SignalWatch watch;
  Loader loader(fed, device, {.batch_size = 8, .shuffle = true, .fields = kFields});
  Verifier verifier(device, expected, loader.plan());
  Progress progress(false, 80);
  FeedAccount account;
  account.options.epochs = 2;
  account.options.verify = true;
  ::testing::internal::CaptureStderr();
  try {
    run_epochs(loader, &verifier, progress, false, account);
  } catch (const Error& thrown) {
    *error = thrown.what();
  }
  ::testing::internal::GetCapturedStderr();
  return account;
}

TEST_P(VerifierOn, FailsTheFeedOfAnotherDataset) {
  std::string error;
  const FeedAccount right = feed_and_verify(device, source.dataset, source.dataset, &error);
  EXPECT_EQ(error, "");
  EXPECT_TRUE(right.verified);
  EXPECT_EQ(right.compared.samples, 2 * kSamples);

  Source other;
  other.labels[31] ^= 1;
  other.dataset = Dataset({source.dataset.reader(0), read_array(source.dataset.field(1), other.labels)});
  const FeedAccount wrong = feed_and_verify(device, source.dataset, other.dataset, &error);
  EXPECT_THAT(error, HasSubstr("sample 31 "));
  EXPECT_EQ(wrong.trouble, error);
  EXPECT_FALSE(wrong.verified);
  EXPECT_FALSE(wrong.epochs.back().complete);
}

INSTANTIATE_TEST_SUITE_P(Host, VerifierOn, ::testing::Values("host", "host:late=1"),
                         [](const auto& value) { return value.index == 0 ? "Host" : "LateHost"; });

}  // namespace
}  // namespace penstock::cli
