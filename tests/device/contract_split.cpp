#include "device/contract_suite.hpp"
#include "device/conversions.hpp"

#include <iterator>
#include <random>
#include <type_traits>
#include <utility>

namespace penstock::testing {

namespace {

/// Columns that lie side by side as rows, and where the device writes them: each between bytes that it must
/// leave alone.
class SplitTable {
 public:
  SplitTable(std::uint64_t rows, std::uint64_t seed) : rows_(rows), random_(seed) {}

  /// A column of `elements` values for each row, behind the columns before it.
  void add(DType from, DType to, std::uint32_t elements = 1, bool scaled = false) {
    const std::uint64_t from_bytes = dtype_bytes(from);
    const std::uint64_t to_bytes = dtype_bytes(to);
    row_end_ = (row_end_ + from_bytes - 1) / from_bytes * from_bytes;
    destination_end_ = (destination_end_ + kMargin + to_bytes - 1) / to_bytes * to_bytes;
    for (std::uint32_t e = 0; e < elements; ++e) {
      RowValue value;
      value.destination = destination_end_ + e * to_bytes;
      value.destination_stride = static_cast<std::uint32_t>(elements * to_bytes);
      value.row_offset = static_cast<std::uint32_t>(row_end_ + e * from_bytes);
      value.from = from;
      value.to = to;
      value.scaled = scaled;
      if (scaled) {
        value.scale = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 77.0F;
        value.shift = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 77.0F;
      }
      values_.push_back(value);
    }
    row_end_ += elements * from_bytes;
    destination_end_ += rows_ * elements * to_bytes;
  }

  /// Bytes that no column has.
  void skip(std::uint64_t bytes) { row_end_ += bytes; }

  /// The next column begins with value `number`.
  void rewind(std::size_t number = 0) { row_end_ = values_[number].row_offset; }

  /// The end of the row if such a column were added.
  [[nodiscard]] std::uint64_t end_with(DType from, std::uint32_t elements) const {
    const std::uint64_t bytes = dtype_bytes(from);
    return (row_end_ + bytes - 1) / bytes * bytes + elements * bytes;
  }

  [[nodiscard]] std::uint64_t rows() const { return rows_; }

  [[nodiscard]] std::uint64_t row_bytes() const { return (row_end_ + 15) / 16 * 16; }
  [[nodiscard]] std::uint64_t destination_bytes() const { return destination_end_ + kMargin; }
  [[nodiscard]] std::span<const RowValue> values() const { return values_; }
  [[nodiscard]] std::vector<std::uint32_t> firsts() const { return segment_firsts(values_, row_bytes()); }

  /// The rows. Infinities and NaN times a factor do not test rounding, so they are tested unscaled.
  [[nodiscard]] std::vector<std::byte> make_rows() {
    auto rows = random_bytes(rows_ * row_bytes(), random_());
    for (const RowValue& value : values_) {
      if (!value.scaled || !is_float(value.from)) continue;
      const Format format = format_of(value.from);
      for (std::uint64_t row = 0; row < rows_; ++row) {
        const double number = static_cast<std::int16_t>(random_()) / 64.0;
        const std::uint32_t bits = encode_float(number, format.exponent, format.mantissa);
        std::memcpy(rows.data() + row * row_bytes() + value.row_offset, &bits, dtype_bytes(value.from));
      }
    }
    return rows;
  }

  /// Compares what is at the destination. A NaN may become any NaN.
  void expect_split(std::span<const std::byte> rows, std::span<const std::byte> actual) const {
    std::vector<std::byte> expected(destination_bytes(), kPoison);
    for (const RowValue& value : values_) {
      for (std::uint64_t row = 0; row < rows_; ++row) {
        const std::uint64_t from = load(rows.data() + row * row_bytes() + value.row_offset, value.from);
        const std::uint64_t at = value.destination + row * value.destination_stride;
        std::uint64_t to = convert(from, value.from, value.to, value.scaled ? &value.scale : nullptr,
                                   value.scaled ? &value.shift : nullptr);
        const std::uint64_t result = load(actual.data() + at, value.to);
        if (value.from != value.to && is_nan(to, value.to) && is_nan(result, value.to)) to = result;
        std::memcpy(expected.data() + at, &to, dtype_bytes(value.to));
      }
    }
    EXPECT_TRUE(same_bytes(expected, actual))
        << rows_ << " rows of " << row_bytes() << " bytes, " << values_.size() << " values";
  }

 private:
  static constexpr std::uint64_t kMargin = 24;

  std::uint64_t rows_;
  std::mt19937_64 random_;
  std::vector<RowValue> values_;
  std::uint64_t row_end_ = 0;
  std::uint64_t destination_end_ = 0;
};

/// A table's rows, tables and destination in memory of `Bytes`, which the device reaches.
template <typename Bytes>
class SplitMemory {
 public:
  SplitMemory(const Device& device, SplitTable& table)
      : device_(device),
        table_(table),
        contents_(table.make_rows()),
        firsts_list_(table.firsts()),
        rows_(device, contents_.size()),
        values_(device, table.values().size_bytes()),
        firsts_(device, firsts_list_.size() * sizeof(std::uint32_t)),
        staged_rows_(device, rows_.size()),
        staged_values_(device, values_.size()),
        staged_firsts_(device, firsts_.size()),
        target_(device, table.destination_bytes()) {}

  [[nodiscard]] SplitRequest request() const {
    return {.rows = at(rows_),
            .row_bytes = table_.row_bytes(),
            .count = table_.rows(),
            .destination = target_.data(),
            .values = static_cast<const RowValue*>(at(values_)),
            .firsts = static_cast<const std::uint32_t*>(at(firsts_)),
            .value_count = static_cast<std::uint32_t>(table_.values().size())};
  }

  /// Enqueues the writing of rows and tables, and their split.
  void enqueue(const Stream& stream) const {
    put(stream, rows_, staged_rows_, contents_);
    put(stream, values_, staged_values_, std::as_bytes(table_.values()));
    put(stream, firsts_, staged_firsts_, bytes_of(firsts_list_));
    stream.fill(target_.data(), std::to_integer<std::uint8_t>(kPoison), target_.size());
    stream.split_rows(request());
  }

  void compare(const Stream& stream) const {
    const PinnedBytes result(device_, target_.size());
    stream.copy(result.data(), target_.data(), target_.size(), CopyDirection::d2h);
    stream.synchronize();
    table_.expect_split(contents_, result.bytes());
  }

 private:
  static constexpr bool kLocked = std::is_same_v<Bytes, PinnedBytes>;

  [[nodiscard]] const void* at(const Bytes& bytes) const {
    return kLocked ? device_.backend().device_address(bytes.data()) : bytes.data();
  }

  static void put(const Stream& stream, const Bytes& to, const PinnedBytes& staging,
                  std::span<const std::byte> bytes) {
    std::memcpy(kLocked ? to.data() : staging.data(), bytes.data(), bytes.size());
    if (!kLocked) stream.copy(to.data(), staging.data(), bytes.size(), CopyDirection::h2d);
  }

  Device device_;
  const SplitTable& table_;
  const std::vector<std::byte> contents_;
  const std::vector<std::uint32_t> firsts_list_;
  Bytes rows_;
  Bytes values_;
  Bytes firsts_;
  PinnedBytes staged_rows_;
  PinnedBytes staged_values_;
  PinnedBytes staged_firsts_;
  DeviceBytes target_;
};

void expect_split(const Device& device, const Stream& stream, SplitTable& table) {
  const SplitMemory<DeviceBytes> memory(device, table);
  memory.enqueue(stream);
  memory.compare(stream);
}

constexpr std::uint64_t kCounts[] = {1, 31, 32, 33, 1000};

TEST_P(Contract, SplitConvertsEveryPair) {
  for (const std::uint64_t count : kCounts) {
    SplitTable table(count, 1000 + count);
    for (const DType from : kTypes) {
      for (const DType to : kTypes) {
        if (can_widen(from, to)) table.add(from, to);
      }
    }
    expect_split(device(), stream(), table);
  }
}

TEST_P(Contract, SplitScalesEveryPair) {
  for (const std::uint64_t count : kCounts) {
    SplitTable table(count, 1100 + count);
    for (const DType from : kTypes) {
      for (const DType to : {DType::float16, DType::bfloat16, DType::float32}) {
        if (can_widen(from, to)) table.add(from, to, 1, true);
      }
    }
    expect_split(device(), stream(), table);
  }
}

// Random columns of one to five elements, until a row has its size.
TEST_P(Contract, SplitTakesRowsOfAnySize) {
  std::mt19937_64 random(1200);
  for (const std::uint64_t bytes : {16u, 32u, 48u, 112u, 240u, 256u, 272u, 496u, 512u, 528u, 1024u, 1040u}) {
    for (const std::uint64_t count : {7u, 32u, 65u, 100u}) {
      SplitTable table(count, random());
      while (table.row_bytes() < bytes) {
        const DType from = kTypes[random() % std::size(kTypes)];
        const DType to = kTypes[random() % std::size(kTypes)];
        const auto elements = static_cast<std::uint32_t>(1 + random() % 5);
        const bool scaled = is_float(to) && random() % 2 == 0;
        if (!can_widen(from, to) || table.end_with(from, elements) > bytes) continue;
        table.add(from, to, elements, scaled);
        if (random() % 8 == 0 && table.row_bytes() < bytes) table.skip(1);
      }
      expect_split(device(), stream(), table);
      if (HasFailure()) return;
    }
  }
}

// Many values begin in each segment, or none do; the last one ends with the row.
TEST_P(Contract, SplitTakesSegmentsOfAnyNumberOfValues) {
  for (const auto& [before, between] :
       {std::pair{0u, 0u}, {0u, 600u}, {300u, 0u}, {512u, 256u}, {255u, 1u}}) {
    SplitTable table(50, 1300 + before + between);
    table.skip(before);
    table.add(DType::uint8, DType::uint8, 256);
    table.skip(between);
    table.add(DType::uint8, DType::float32, 300, true);
    table.add(DType::float64, DType::float64, 1);
    expect_split(device(), stream(), table);
    if (HasFailure()) return;
  }
}

TEST_P(Contract, SplitTakesValuesThatOverlap) {
  SplitTable table(70, 1400);
  table.add(DType::int32, DType::int64);
  table.rewind();
  table.add(DType::int32, DType::int32);
  table.rewind();
  table.add(DType::bfloat16, DType::float32, 2);
  table.rewind(3);
  table.add(DType::uint16, DType::float32, 1, true);
  expect_split(device(), stream(), table);
}

// More tiles than a GPU has warps, so that each warp splits several.
TEST_P(Contract, SplitOfManyRows) {
  SplitTable table(150000, 1500);
  table.add(DType::uint8, DType::float32, 1, true);
  table.add(DType::uint8, DType::uint8);
  table.add(DType::uint16, DType::int32);
  table.add(DType::float64, DType::float64);
  expect_split(device(), stream(), table);
}

TEST_P(Contract, SplitOfManyRowsOfManySegments) {
  SplitTable table(1000, 1600);
  for (int i = 0; i < 40; ++i) {
    table.skip(i % 3 == 0 ? 260 : 0);
    table.add(DType::int16, DType::float32, 7);
    table.add(DType::float32, DType::float16, 3, true);
  }
  expect_split(device(), stream(), table);
}

TEST_P(Contract, SplitReadsLockedMemory) {
  SplitTable table(100, 1700);
  table.add(DType::uint8, DType::float32, 20, true);
  table.add(DType::float32, DType::float32, 70);
  const SplitMemory<PinnedBytes> memory(device(), table);
  memory.enqueue(stream());
  memory.compare(stream());
}

TEST_P(Contract, SplitReadsItsRowsAndTablesWhenItsTurnComes) {
  SplitTable table(100, 1800);
  table.add(DType::uint8, DType::float32, 100, true);
  table.add(DType::int32, DType::int64, 60);
  const SplitMemory<DeviceBytes> memory(device(), table);
  Gate gate(device());
  gate.hold(stream());
  memory.enqueue(stream());
  gate.open();
  memory.compare(stream());
}

TEST_P(Contract, SplitTakesRowsThatAGatherPicked) {
  constexpr std::uint64_t kRows = 90;
  SplitTable table(kRows, 1900);
  table.add(DType::int8, DType::float16, 10);
  table.add(DType::float32, DType::float32, 80);
  const SplitMemory<DeviceBytes> memory(device(), table);
  memory.enqueue(stream());
  const SplitRequest split = memory.request();
  // The same rows by way of two gathers that turn their order around.
  const DeviceBytes turned(device(), kRows * table.row_bytes());
  const DeviceBytes back(device(), turned.size());
  const DeviceBytes indices(device(), kRows * sizeof(std::uint64_t));
  std::vector<std::uint64_t> order(kRows);
  for (std::uint64_t i = 0; i < kRows; ++i) order[i] = kRows - 1 - i;
  upload(indices.data(), bytes_of(order));
  GatherRequest gather;
  gather.source = split.rows;
  gather.source_rows = kRows;
  gather.row_elements = table.row_bytes();
  gather.indices = reinterpret_cast<const std::uint64_t*>(indices.data());
  gather.count = kRows;
  gather.destination = turned.data();
  stream().gather(gather);
  gather.source = turned.data();
  gather.destination = back.data();
  stream().gather(gather);
  stream().fill(split.destination, std::to_integer<std::uint8_t>(kPoison), table.destination_bytes());
  SplitRequest again = split;
  again.rows = back.data();
  stream().split_rows(again);
  memory.compare(stream());
}

TEST_P(Contract, SplitRefusesWhatItCannotDo) {
  const DeviceBytes block(device(), 4096);
  upload(block.data(), random_bytes(4096, 1950));
  const auto before = download(block.data(), block.size());
  const SplitRequest good{.rows = block.data(),
                          .row_bytes = 32,
                          .count = 4,
                          .destination = block.data() + 1024,
                          .values = reinterpret_cast<const RowValue*>(block.data() + 2048),
                          .firsts = reinterpret_cast<const std::uint32_t*>(block.data() + 3072),
                          .value_count = 1};
  const auto refused = [&](auto change) {
    SplitRequest request = good;
    change(request);
    EXPECT_THROW(stream().split_rows(request), InvalidArgument);
  };
  refused([](SplitRequest& r) { r.rows = nullptr; });
  refused([](SplitRequest& r) { r.destination = nullptr; });
  refused([](SplitRequest& r) { r.values = nullptr; });
  refused([](SplitRequest& r) { r.firsts = nullptr; });
  refused([](SplitRequest& r) { r.row_bytes = 40; });
  refused([](SplitRequest& r) { r.row_bytes = 0; });
  refused([](SplitRequest& r) { r.row_bytes = (1ull << 32) + 16; });
  refused([](SplitRequest& r) { r.count = 1ull << 60; });
  refused([&](SplitRequest& r) { r.rows = block.data() + 8; });
  refused([&](SplitRequest& r) { r.destination = block.data() + 1032; });
  refused([&](SplitRequest& r) { r.values = reinterpret_cast<const RowValue*>(block.data() + 2052); });
  refused([&](SplitRequest& r) { r.firsts = reinterpret_cast<const std::uint32_t*>(block.data() + 3074); });
  SplitRequest empty{.row_bytes = 32, .value_count = 1};
  stream().split_rows(empty);
  empty = good;
  empty.value_count = 0;
  stream().split_rows(empty);
  EXPECT_TRUE(same_bytes(before, download(block.data(), block.size())));
}

std::vector<std::uint32_t> firsts_of(std::initializer_list<std::uint32_t> offsets, std::uint64_t row_bytes) {
  std::vector<RowValue> values;
  for (const std::uint32_t offset : offsets) values.push_back({.row_offset = offset});
  return segment_firsts(values, row_bytes);
}

TEST(SegmentFirsts, NameTheFirstValueOfEachSegment) {
  using Firsts = std::vector<std::uint32_t>;
  EXPECT_EQ(firsts_of({}, 0), Firsts({0}));
  EXPECT_EQ(firsts_of({}, 272), Firsts({0, 0, 0}));
  EXPECT_EQ(firsts_of({0}, 16), Firsts({0, 1}));
  EXPECT_EQ(firsts_of({255}, 256), Firsts({0, 1}));
  EXPECT_EQ(firsts_of({0, 0, 255, 256}, 272), Firsts({0, 3, 4}));
  EXPECT_EQ(firsts_of({256}, 512), Firsts({0, 0, 1}));
  EXPECT_EQ(firsts_of({3, 800, 801}, 1040), Firsts({0, 1, 1, 1, 3, 3}));
}

TEST(SegmentFirsts, RefuseValuesThatNoDeviceCanSplit) {
  const RowValue good{
      .destination = 8, .destination_stride = 4, .row_offset = 12, .from = DType::int32, .to = DType::int32};
  EXPECT_EQ(segment_firsts({&good, 1}, 16).size(), 2u);
  const auto refused = [&](auto change, std::uint64_t row_bytes = 16) {
    RowValue value = good;
    change(value);
    EXPECT_THROW(static_cast<void>(segment_firsts({&value, 1}, row_bytes)), InvalidArgument);
  };
  refused([](RowValue&) {}, 20);
  refused([](RowValue&) {}, (1ull << 32) + 16);
  refused([](RowValue& v) { v.destination = 10; });
  refused([](RowValue& v) { v.destination_stride = 6; });
  refused([](RowValue& v) { v.row_offset = 10; });
  refused([](RowValue& v) { v.row_offset = 16; });
  refused([](RowValue& v) { v.to = DType::int16; });
  refused([](RowValue& v) { v.to = DType::float32; });
  refused([](RowValue& v) { v.scaled = true; });
  EXPECT_THROW(static_cast<void>(firsts_of({1, 0}, 16)), InvalidArgument);
}

}  // namespace

}  // namespace penstock::testing
