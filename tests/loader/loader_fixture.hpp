#pragma once

#include "support/bytes.hpp"
#include "support/device_cases.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock::testing {

/// A field of `samples` random samples.
inline FieldReaderPtr random_field(std::string name, DType dtype, Shape shape, std::size_t samples,
                                   std::uint64_t seed) {
  Field field{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  const std::size_t bytes = samples * field.sample_bytes();
  return read_array(std::move(field), random_bytes(bytes, seed));
}

/// The same samples from a function, which the device cannot read.
inline FieldReaderPtr as_callback(const FieldReaderPtr& reader) {
  return read_callback(reader->field(), reader->sample_count(),
                       [reader](std::uint64_t index, std::span<std::byte> destination) {
                         reader->gather(std::span(&index, 1), destination, StoreKind::cached);
                         return destination.size();
                       });
}

/// A batch on the host: the samples that it claims to hold, and the bytes of each field.
struct HostBatch {
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
  std::vector<std::uint64_t> indices;
  std::vector<std::vector<std::byte>> fields;
};

/// A device, a consumer's stream, and a way to look into batches.
class LoaderTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = open_or_skip(GetParam());
    if (!device_) GTEST_SKIP() << "waived: no NVIDIA driver";
    stream_.emplace(device_->create_stream());
    pinned_.emplace(make_pinned_pool(*device_, {.segment_bytes = std::size_t{1} << 20}));
  }

  /// Copies the batch out on `stream`, and then poisons it, so that old bytes in a slot would show.
  HostBatch read(const DeviceBatch& batch, const Stream& stream) {
    HostBatch result{
        .epoch = batch.epoch(), .index = batch.index(), .indices = batch.indices(), .fields = {}};
    for (std::size_t f = 0; f < batch.field_count(); ++f) {
      const DeviceField& field = batch.field(f);
      const Buffer pinned = pinned_->allocate(field.bytes);
      stream.copy(pinned.data(), field.data, field.bytes, CopyDirection::d2h);
      stream.fill(field.data, std::to_integer<std::uint8_t>(kPoison), field.bytes);
      stream.synchronize();
      result.fields.emplace_back(pinned.data(), pinned.data() + field.bytes);
    }
    return result;
  }
  HostBatch read(const DeviceBatch& batch) { return read(batch, *stream_); }

  /// False for work that waits for a stream that is held back, however long one waits.
  static bool is_done_soon(const Stream& stream) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (!stream.query()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  /// The rest of the epoch.
  std::vector<HostBatch> read_epoch(Loader& loader) {
    std::vector<HostBatch> batches;
    while (const auto batch = loader.next(*stream_)) batches.push_back(read(*batch));
    return batches;
  }

  static std::vector<std::uint64_t> indices_of(const std::vector<HostBatch>& batches) {
    std::vector<std::uint64_t> indices;
    for (const HostBatch& batch : batches)
      indices.insert(indices.end(), batch.indices.begin(), batch.indices.end());
    return indices;
  }

  /// Expects each batch to hold, as stored, the samples that it claims to hold.
  static void expect_stored(const Dataset& dataset, const std::vector<HostBatch>& batches) {
    for (const HostBatch& batch : batches) expect_stored(dataset, batch);
  }
  static void expect_stored(const Dataset& dataset, const HostBatch& batch) {
    for (std::size_t f = 0; f < dataset.field_count(); ++f) {
      std::vector<std::byte> expected(batch.indices.size() * dataset.sample_bytes(f));
      dataset.gather(f, batch.indices, expected);
      EXPECT_EQ(first_difference(batch.fields[f], expected), -1)
          << "epoch " << batch.epoch << ", batch " << batch.index << ", field " << dataset.field(f).name;
    }
  }

  static std::vector<std::uint64_t> numbers(std::uint64_t count) {
    std::vector<std::uint64_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    return values;
  }

  std::optional<Device> device_;
  std::optional<Stream> stream_;
  std::optional<Pool> pinned_;
};

}  // namespace penstock::testing
