#include "device/contract_suite.hpp"
#include "device/conversions.hpp"

#include <random>
#include <tuple>

namespace penstock::testing {

namespace {

/// The pairs that the contract names, besides equal ones. They are spelled out so that can_widen is tested
/// too.
bool expected_pair(DType from, DType to) {
  const auto is = [](DType dtype, std::initializer_list<DType> list) {
    for (const DType one : list) {
      if (one == dtype) return true;
    }
    return false;
  };
  using enum DType;
  if (from == to) return true;
  switch (from) {
    case uint8:
      return is(to, {uint16, int16, uint32, int32, uint64, int64, float16, bfloat16, float32});
    case int8:
      return is(to, {int16, int32, int64, float16, bfloat16, float32});
    case uint16:
      return is(to, {uint32, int32, uint64, int64, float16, bfloat16, float32});
    case int16:
      return is(to, {int32, int64, float16, bfloat16, float32});
    case uint32:
      return is(to, {uint64, int64});
    case int32:
      return is(to, {int64});
    case float16:
      return is(to, {bfloat16, float32});
    case bfloat16:
      return is(to, {float16, float32});
    case float32:
      return is(to, {float16, bfloat16});
    default:
      return false;
  }
}

struct Case {
  DType from = DType::uint8;
  DType to = DType::uint8;
  std::size_t rows = 50;
  std::size_t row_elements = 37;
  std::size_t gap_bytes = 0;  ///< after each row of the source
  bool indexed = true;
  bool scaled = false;
  std::uint32_t channels = 1;
  std::uint64_t channel_elements = 1;
  std::uint32_t blocks = 0;
  std::size_t source_offset = 0;
  std::size_t destination_offset = 0;
  std::size_t head_rows = 0;  ///< in device memory, while the others are in locked memory
  std::size_t head_offset = 0;
};

class GatherCase {
 public:
  GatherCase(const Device& device, const Case& shape, std::uint64_t seed)
      : device_(device),
        shape_(shape),
        from_bytes_(dtype_bytes(shape.from)),
        stride_(shape.row_elements * from_bytes_ + shape.gap_bytes),
        result_bytes_(shape.rows * shape.row_elements * dtype_bytes(shape.to)),
        contents_(random_bytes(shape.rows * stride_, seed)),
        source_(device, shape.source_offset + contents_.size() - head_bytes() + 1),
        head_(device, shape.head_offset + head_bytes() + 1),
        indices_(device, shape.rows * sizeof(std::uint64_t)),
        factors_(device, 2 * shape.channels * sizeof(float)),
        result_(device, shape.destination_offset + result_bytes_ + kMargin) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < shape.rows; ++i) {
      indices_.as<std::uint64_t>()[i] =
          random() % 8 == 0 ? shape.rows + random() % 2 * (~0ull >> 1) : random() % shape.rows;
    }
    for (std::uint32_t c = 0; c < 2 * shape.channels; ++c) {
      factors_.as<float>()[c] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 77.0F;
    }
    if (shape.scaled) replace_special_values();
    std::memcpy(source_.data() + shape.source_offset, contents_.data() + head_bytes(),
                contents_.size() - head_bytes());
  }

  [[nodiscard]] GatherRequest request(std::byte* destination) const {
    const auto at = [&](const PinnedBytes& bytes) {
      return static_cast<std::byte*>(device_.backend().device_address(bytes.data()));
    };
    GatherRequest request;
    if (shape_.head_rows < shape_.rows) request.source = at(source_) + shape_.source_offset;
    request.source_rows = shape_.rows;
    if (shape_.head_rows != 0) request.head = head_.data() + shape_.head_offset;
    request.head_rows = shape_.head_rows;
    request.row_elements = shape_.row_elements;
    request.row_stride_bytes = shape_.gap_bytes == 0 ? 0 : stride_;
    request.indices = shape_.indexed ? reinterpret_cast<const std::uint64_t*>(at(indices_)) : nullptr;
    request.count = shape_.rows;
    request.destination = destination + shape_.destination_offset;
    request.from = shape_.from;
    request.to = shape_.to;
    if (shape_.scaled) {
      request.scale = reinterpret_cast<const float*>(at(factors_));
      request.shift = request.scale + shape_.channels;
    }
    request.channels = shape_.channels;
    request.channel_elements = shape_.channel_elements;
    request.blocks = shape_.blocks;
    return request;
  }

  /// Runs the gather into device memory and compares every element, and the bytes around them.
  void run(const Stream& stream) {
    const DeviceBytes target(device_, result_.size());
    PinnedBytes head(device_, head_bytes() + 1);
    head.assign(std::span(contents_).first(head_bytes()));
    stream.copy(head_.data() + shape_.head_offset, head.data(), head_bytes(), CopyDirection::h2d);
    stream.fill(target.data(), 0xA5, target.size());
    stream.gather(request(target.data()));
    stream.copy(result_.data(), target.data(), target.size(), CopyDirection::d2h);
    stream.synchronize();
    compare();
  }

 private:
  static constexpr std::size_t kMargin = 64;

  [[nodiscard]] std::size_t head_bytes() const { return shape_.head_rows * stride_; }

  // Infinities and NaN times a factor do not test rounding. They are tested unscaled.
  void replace_special_values() {
    for (std::size_t at = 0; at + from_bytes_ <= contents_.size(); at += from_bytes_) {
      if (!is_float(shape_.from)) return;
      const auto value = static_cast<std::int16_t>(load(contents_.data() + at, DType::int16)) / 64.0;
      const Format format = format_of(shape_.from);
      const std::uint32_t bits = encode_float(value, format.exponent, format.mantissa);
      std::memcpy(contents_.data() + at, &bits, from_bytes_);
    }
  }

  void compare() const {
    const std::size_t to_bytes = dtype_bytes(shape_.to);
    const auto* factors = factors_.as<float>();
    for (std::size_t i = 0; i < shape_.rows; ++i) {
      const std::uint64_t index = shape_.indexed ? indices_.as<std::uint64_t>()[i] : i;
      for (std::size_t e = 0; e < shape_.row_elements; ++e) {
        const std::size_t channel = e / shape_.channel_elements % shape_.channels;
        const bool exists = index < shape_.rows;
        const std::uint64_t bits =
            exists ? load(contents_.data() + index * stride_ + e * from_bytes_, shape_.from) : 0;
        const std::uint64_t expected =
            !exists ? 0
                    : convert(bits, shape_.from, shape_.to, shape_.scaled ? factors + channel : nullptr,
                              shape_.scaled ? factors + shape_.channels + channel : nullptr);
        const std::uint64_t actual = load(
            result_.data() + shape_.destination_offset + (i * shape_.row_elements + e) * to_bytes, shape_.to);
        if (shape_.from != shape_.to && exists && is_nan(bits, shape_.from)) {
          ASSERT_TRUE(is_nan(actual, shape_.to)) << "row " << i << " element " << e;
        } else {
          ASSERT_EQ(expected, actual)
              << "row " << i << " (source row " << index << ") element " << e << " of bits " << bits;
        }
      }
    }
    for (std::size_t i = 0; i < shape_.destination_offset; ++i) ASSERT_EQ(result_.data()[i], kPoison);
    for (std::size_t i = shape_.destination_offset + result_bytes_; i < result_.size(); ++i) {
      ASSERT_EQ(result_.data()[i], kPoison)
          << "past the end by " << i - shape_.destination_offset - result_bytes_;
    }
  }

  Device device_;
  Case shape_;
  std::size_t from_bytes_;
  std::size_t stride_;
  std::size_t result_bytes_;
  std::vector<std::byte> contents_;
  PinnedBytes source_;
  DeviceBytes head_;
  PinnedBytes indices_;
  PinnedBytes factors_;
  PinnedBytes result_;
};

std::string describe(const Case& shape) {
  return std::string(dtype_name(shape.from)) + " to " + std::string(dtype_name(shape.to)) + ", " +
         std::to_string(shape.rows) + " rows of " + std::to_string(shape.row_elements) +
         (shape.scaled ? ", scaled" : "") +
         (shape.head_rows != 0 ? ", " + std::to_string(shape.head_rows) + " in the head" : "");
}

TEST_P(Contract, CanWidenIsWhatItSays) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      EXPECT_EQ(can_widen(from, to), expected_pair(from, to)) << dtype_name(from) << " to " << dtype_name(to);
    }
  }
}

TEST_P(Contract, GatherConvertsEveryPair) {
  std::uint64_t seed = 100;
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      if (!can_widen(from, to)) continue;
      for (const std::size_t elements : {1u, 37u, 256u}) {
        const Case shape{.from = from, .to = to, .rows = 60, .row_elements = elements};
        SCOPED_TRACE(describe(shape));
        GatherCase(device(), shape, ++seed).run(stream());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Contract, GatherScalesByChannel) {
  std::uint64_t seed = 200;
  for (const DType from : kTypes) {
    for (const DType to : {DType::float16, DType::bfloat16, DType::float32}) {
      if (!can_widen(from, to)) continue;
      for (const auto& [elements, channels, run] :
           {std::tuple{1u, 1u, 1u}, {48u, 3u, 16u}, {50u, 3u, 1u}, {64u, 4u, 5u}, {192u, 3u, 64u}}) {
        const Case shape{.from = from,
                         .to = to,
                         .rows = 20,
                         .row_elements = elements,
                         .scaled = true,
                         .channels = channels,
                         .channel_elements = run};
        SCOPED_TRACE(describe(shape));
        GatherCase(device(), shape, ++seed).run(stream());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Contract, GatherCopiesRowsOfAnySizeAndPlace) {
  std::uint64_t seed = 300;
  for (const std::size_t elements : {1u, 2u, 3u, 15u, 16u, 17u, 100u, 255u, 784u, 1000u, 4096u, 4099u}) {
    for (const auto& [gap, from, to] :
         {std::tuple{0u, 0u, 0u}, {3u, 0u, 0u}, {16u, 16u, 16u}, {1u, 5u, 11u}}) {
      const Case shape{.rows = 33,
                       .row_elements = elements,
                       .gap_bytes = gap,
                       .source_offset = from,
                       .destination_offset = to};
      SCOPED_TRACE(describe(shape));
      GatherCase(device(), shape, ++seed).run(stream());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Contract, GatherTakesStridesWithWiderTypes) {
  std::uint64_t seed = 400;
  for (const DType from : {DType::uint8, DType::int16, DType::float16}) {
    for (const std::size_t gap : {4u, 16u, 100u}) {
      for (const bool indexed : {false, true}) {
        const Case shape{.from = from,
                         .to = DType::float32,
                         .rows = 40,
                         .row_elements = 33,
                         .gap_bytes = gap,
                         .indexed = indexed};
        SCOPED_TRACE(describe(shape));
        GatherCase(device(), shape, ++seed).run(stream());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Contract, GatherOfManyRowsWithFewBlocks) {
  for (const std::uint32_t blocks : {0u, 1u, 4u}) {
    for (const DType to : {DType::uint8, DType::float32}) {
      const Case shape{.to = to, .rows = 3000, .row_elements = 64, .blocks = blocks};
      SCOPED_TRACE(describe(shape));
      GatherCase(device(), shape, 500 + blocks).run(stream());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Contract, GatherConvertsEveryPairFromTwoSources) {
  std::mt19937_64 random(600);
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      if (!can_widen(from, to)) continue;
      for (const std::size_t elements : {37u, 64u}) {
        const std::size_t rows = 24 + random() % 8;
        const std::size_t at = random() % 8 * dtype_bytes(from);
        const Case shape{.from = from,
                         .to = to,
                         .rows = rows,
                         .row_elements = elements,
                         .indexed = random() % 4 != 0,
                         .source_offset = elements == 37 ? at : 0,
                         .head_rows = 1 + random() % rows,
                         .head_offset = elements == 37 ? random() % 8 * dtype_bytes(from) : 0};
        SCOPED_TRACE(describe(shape));
        GatherCase(device(), shape, random()).run(stream());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Each alignment of the head with each of the source. For some pairs, one of the two fits the kernel for
// aligned rows.
TEST_P(Contract, GatherTakesAHeadAndASourceOfAnyPlace) {
  std::mt19937_64 random(700);
  for (const auto& [head, source] : {std::tuple{0u, 0u}, {0u, 4u}, {4u, 0u}, {4u, 12u}, {8u, 16u}}) {
    for (const auto& [from, to] : {std::tuple{DType::uint8, DType::uint8},
                                   {DType::uint8, DType::float16},
                                   {DType::int8, DType::int32},
                                   {DType::bfloat16, DType::float32},
                                   {DType::float32, DType::float16}}) {
      for (const std::size_t gap : {0u, 16u, 20u}) {
        const std::size_t rows = 20 + random() % 20;
        const Case shape{.from = from,
                         .to = to,
                         .rows = rows,
                         .row_elements = 48,
                         .gap_bytes = gap,
                         .scaled = to == DType::float16,
                         .channels = 3,
                         .channel_elements = 16,
                         .source_offset = source,
                         .head_rows = 1 + random() % (rows - 1),
                         .head_offset = head};
        SCOPED_TRACE(describe(shape));
        GatherCase(device(), shape, random()).run(stream());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// One thing at a time is not aligned, so that the kernel for aligned rows does not fit: the destination, the
// rows' size, or their distance.
TEST_P(Contract, GatherTakesRowsOfWhichNotAllIsAligned) {
  std::uint64_t seed = 750;
  for (const auto& [from, to] : {std::tuple{DType::uint8, DType::uint8},
                                 {DType::uint8, DType::float16},
                                 {DType::int8, DType::int32},
                                 {DType::bfloat16, DType::float32}}) {
    for (const auto& [elements, gap, place] :
         {std::tuple{32u, 0u, 8u}, {20u, 12u, 0u}, {32u, 4u, 0u}, {32u, 16u, 0u}}) {
      const Case shape{.from = from,
                       .to = to,
                       .row_elements = elements,
                       .gap_bytes = gap * dtype_bytes(from),
                       .destination_offset = place};
      SCOPED_TRACE(describe(shape));
      GatherCase(device(), shape, ++seed).run(stream());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Contract, GatherTakesChannelsLongerThanAnyRow) {
  for (const std::uint64_t elements : {std::uint64_t{100}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    const Case shape{.to = DType::float32, .scaled = true, .channels = 2, .channel_elements = elements};
    SCOPED_TRACE(elements);
    GatherCase(device(), shape, 760).run(stream());
    if (HasFatalFailure()) return;
  }
}

TEST_P(Contract, GatherCopiesRowsFromTwoSourcesSplitAnywhere) {
  std::mt19937_64 random(800);
  for (const std::size_t elements : {1u, 3u, 16u, 100u, 784u}) {
    for (const std::size_t split : {0u, 1u, 16u, 32u, 33u}) {
      const Case shape{.rows = 33,
                       .row_elements = elements,
                       .gap_bytes = random() % 3,
                       .source_offset = random() % 16,
                       .destination_offset = random() % 16,
                       .head_rows = split,
                       .head_offset = random() % 16};
      SCOPED_TRACE(describe(shape));
      GatherCase(device(), shape, random()).run(stream());
      if (HasFatalFailure()) return;
    }
  }
  const Case many{.to = DType::float32, .rows = 3000, .row_elements = 64, .blocks = 4, .head_rows = 1234};
  GatherCase(device(), many, 801).run(stream());
}

TEST_P(Contract, AScaleWithoutAShiftKeepsTheSignOfZero) {
  PinnedBytes source(device(), 2 * sizeof(float));
  source.as<float>()[0] = 0.0F;
  source.as<float>()[1] = -0.0F;
  PinnedBytes scale(device(), sizeof(float));
  scale.as<float>()[0] = -2.0F;
  DeviceBytes result(device(), 2 * sizeof(float));
  GatherRequest request;
  request.source = backend().device_address(source.data());
  request.source_rows = request.count = 2;
  request.row_elements = 1;
  request.from = request.to = DType::float32;
  request.scale = static_cast<const float*>(backend().device_address(scale.data()));
  request.destination = result.data();
  stream().gather(request);
  const float expected[] = {-0.0F, 0.0F};
  EXPECT_TRUE(same_bytes(std::as_bytes(std::span(expected)), download(result.data(), sizeof expected)));
}

TEST_P(Contract, GatherReadsItsIndicesWhenItsTurnComes) {
  const auto rows = random_bytes(1000, 18);
  PinnedBytes source(device(), rows.size());
  PinnedBytes indices(device(), 2 * sizeof(std::uint64_t));
  DeviceBytes result(device(), 200);
  Gate gate(device());
  gate.hold(stream());
  GatherRequest request;
  request.source = backend().device_address(source.data());
  request.source_rows = 10;
  request.row_elements = 100;
  request.indices = static_cast<const std::uint64_t*>(backend().device_address(indices.data()));
  request.count = 2;
  request.destination = result.data();
  stream().gather(request);
  source.assign(rows);
  indices.as<std::uint64_t>()[0] = 7;
  indices.as<std::uint64_t>()[1] = 2;
  gate.open();
  std::vector<std::byte> expected(rows.begin() + 700, rows.begin() + 800);
  expected.insert(expected.end(), rows.begin() + 200, rows.begin() + 300);
  EXPECT_TRUE(same_bytes(expected, download(result.data(), 200)));
}

TEST_P(Contract, GatherRefusesWhatItCannotDo) {
  const DeviceBytes block(device(), 4096);
  GatherRequest good;
  good.source = block.data();
  good.source_rows = 4;
  good.row_elements = 16;
  good.count = 4;
  good.destination = block.data() + 2048;
  const auto refused = [&](auto change) {
    GatherRequest request = good;
    change(request);
    EXPECT_THROW(stream().gather(request), InvalidArgument);
  };
  refused([](GatherRequest& r) { r.source = nullptr; });
  refused([](GatherRequest& r) { r.destination = nullptr; });
  refused([](GatherRequest& r) { r.head_rows = 1; });
  refused([&](GatherRequest& r) { r.head = block.data(), r.head_rows = 5; });
  refused([&](GatherRequest& r) { r.head = block.data(), r.head_rows = 3, r.source = nullptr; });
  refused([](GatherRequest& r) { r.from = DType::float32, r.to = DType::uint8; });
  refused([](GatherRequest& r) { r.from = DType::int64, r.to = DType::int32; });
  refused([](GatherRequest& r) { r.row_stride_bytes = 15; });
  refused([](GatherRequest& r) { r.channels = 0; });
  refused([](GatherRequest& r) { r.channel_elements = 0; });
  refused([&](GatherRequest& r) { r.scale = reinterpret_cast<const float*>(block.data()); });
  refused([](GatherRequest& r) { r.count = ~0ull, r.row_elements = ~0ull; });
  refused([](GatherRequest& r) { r.count = 1ull << 62; });
  refused([](GatherRequest& r) { r.source_rows = 1ull << 62; });
  refused([](GatherRequest& r) { r.source_rows = 1ull << 40, r.row_stride_bytes = 1ull << 40; });
  refused([&](GatherRequest& r) {
    r.from = DType::int16, r.to = DType::float32;
    r.source = block.data() + 1;
  });
  refused([&](GatherRequest& r) {
    r.from = DType::int16, r.to = DType::float32;
    r.head = block.data() + 1, r.head_rows = 1;
  });
  refused([&](GatherRequest& r) { r.from = DType::int16, r.to = DType::float32, r.row_stride_bytes = 33; });
  refused([&](GatherRequest& r) { r.to = DType::float32, r.destination = block.data() + 2049; });
  const auto* unaligned = reinterpret_cast<const float*>(block.data() + 2);
  refused([&](GatherRequest& r) { r.to = DType::float32, r.scale = unaligned; });
  refused([&](GatherRequest& r) { r.to = DType::float32, r.shift = unaligned; });
  refused([&](GatherRequest& r) { r.indices = reinterpret_cast<const std::uint64_t*>(block.data() + 4); });
  const auto before = download(block.data(), block.size());
  GatherRequest empty = good;
  empty.count = 0;
  stream().gather(empty);
  empty = good;
  empty.row_elements = 0;
  stream().gather(empty);
  EXPECT_TRUE(same_bytes(before, download(block.data(), block.size())));
}

}  // namespace

}  // namespace penstock::testing
