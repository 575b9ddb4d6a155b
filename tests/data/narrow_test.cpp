#include "data/support.hpp"

#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>

#include <atomic>
#include <limits>
#include <numeric>

namespace penstock {
namespace {

using test::expect_error;

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::uint8;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::int8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::uint16;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::int16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return DType::uint32;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::int32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return DType::uint64;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::int64;
}

// The result of a device's widening: each value extended to the wide type.
template <typename Wide>
std::vector<Wide> widen(const std::vector<std::byte>& narrow, DType dtype) {
  const std::size_t bytes = dtype_bytes(dtype);
  std::vector<Wide> values(narrow.size() / bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, narrow.data() + i * bytes, bytes);
    values[i] = static_cast<Wide>(value);
  }
  return values;
}

template <typename Wide>
class Narrow : public ::testing::Test {
 protected:
  // `count` values up to `largest`, which occurs once, at a random place.
  std::vector<Wide> values_up_to(std::uint64_t largest, std::size_t count) {
    std::vector<Wide> values(count);
    for (Wide& value : values) value = static_cast<Wide>(largest == 0 ? 0 : random_() % largest);
    values[random_() % count] = static_cast<Wide>(largest);
    return values;
  }

  static Dataset dataset(const std::vector<Wide>& values, std::size_t per_sample) {
    return Dataset({read_array({"x", dtype_of<Wide>(), {per_sample}}, values)});
  }

  static DType expected(std::uint64_t largest) {
    const DType narrow = largest <= 0xFF ? DType::uint8 : largest <= 0xFFFF ? DType::uint16 : DType::uint32;
    return largest <= 0xFFFFFFFF && dtype_bytes(narrow) < sizeof(Wide) ? narrow : dtype_of<Wide>();
  }

  std::mt19937_64 random_{42};
};

using Wides = ::testing::Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t,
                               std::int32_t, std::uint64_t, std::int64_t>;
TYPED_TEST_SUITE(Narrow, Wides);

TYPED_TEST(Narrow, FindsTheSmallestTypeAndRestoresEveryValue) {
  for (const std::uint64_t largest :
       {0ull, 1ull, 127ull, 128ull, 255ull, 256ull, 32767ull, 65535ull, 65536ull, 2147483647ull,
        4294967295ull, 4294967296ull, ~0ull >> 1, ~0ull}) {
    if (largest > static_cast<std::uint64_t>(std::numeric_limits<TypeParam>::max())) continue;
    for (const std::size_t per_sample : {1u, 3u, 64u, 130u}) {
      const auto values = this->values_up_to(largest, per_sample * 101);
      const Dataset wide = this->dataset(values, per_sample);
      ASSERT_EQ(narrowest_dtype(wide, 0, nullptr), this->expected(largest)) << largest;
      for (const std::size_t copy_limit : {std::size_t{0}, std::size_t{1} << 20}) {
        const Dataset narrow = narrow_integers(wide, {.copy_limit = copy_limit});
        const Field& field = narrow.field(0);
        ASSERT_EQ(field.dtype, this->expected(largest));
        const bool changed = field.dtype != dtype_of<TypeParam>();
        ASSERT_EQ(field.narrowed_from.has_value(), changed);
        ASSERT_EQ(field.narrowed_from.value_or(field.dtype), dtype_of<TypeParam>());
        ASSERT_EQ(narrow.memory(0).empty(), changed && copy_limit == 0);
        const auto indices = test::random_indices(77, 101, per_sample);
        const auto restored = widen<TypeParam>(test::gather(narrow, 0, indices), field.dtype);
        std::vector<TypeParam> expected;
        for (const std::uint64_t index : indices) {
          for (std::size_t i = 0; i < per_sample; ++i) expected.push_back(values[index * per_sample + i]);
        }
        ASSERT_EQ(restored, expected) << largest;
      }
    }
  }
}

TYPED_TEST(Narrow, OneNegativeValueAnywhereKeepsTheType) {
  if constexpr (std::is_signed_v<TypeParam>) {
    for (const std::size_t place : {0u, 63u, 64u, 200u, 256u}) {
      std::vector<TypeParam> values(257);
      values[place] = -1;
      EXPECT_EQ(narrowest_dtype(this->dataset(values, 1), 0, nullptr), dtype_of<TypeParam>()) << place;
    }
  }
}

TEST(NarrowIntegers, LeavesFloatsAndBooleansAlone) {
  const Dataset dataset({read_array({"f", DType::float32, {2}}, std::vector<float>(20)),
                         read_array({"b", DType::boolean, {}}, std::vector<std::uint8_t>(10)),
                         read_array({"i", DType::int64, {}}, std::vector<std::int64_t>(10, 300))});
  const Dataset narrow = narrow_integers(dataset);
  EXPECT_EQ(narrow.reader(0), dataset.reader(0));
  EXPECT_EQ(narrow.reader(1), dataset.reader(1));
  EXPECT_EQ(narrow.field(2).dtype, DType::uint16);
  EXPECT_EQ(narrow.field(2).name, "i");
}

TEST(NarrowIntegers, ReadsEveryValueWithATeamToo) {
  constexpr std::size_t kCount = 1500000;  // several parts of a MiB
  std::vector<std::int64_t> values(kCount);
  std::iota(values.begin(), values.end(), 0);
  HostWorkersOptions threads;
  threads.threads = 3;
  HostWorkers workers(threads);
  for (const std::size_t place : {std::size_t{0}, kCount / 2, kCount - 1}) {
    auto changed = values;
    changed[place] = -5;
    EXPECT_EQ(narrowest_dtype(Dataset({read_array({"x", DType::int64, {}}, changed)}), 0, &workers),
              DType::int64);
  }
  const Dataset wide({read_array({"x", DType::int64, {}}, values)});
  const Dataset narrow = narrow_integers(wide, {.workers = &workers});
  ASSERT_EQ(narrow.field(0).dtype, DType::uint32);
  ASSERT_EQ(narrow.memory(0).size(), kCount * 4);
  std::vector<std::byte> all(narrow.memory(0).begin(), narrow.memory(0).end());
  EXPECT_EQ(widen<std::int64_t>(all, DType::uint32), values);
}

TEST(NarrowIntegers, ReadsCallbacksAndMappedFiles) {
  const auto function = [](std::uint64_t index, std::span<std::byte> destination) {
    const auto value = static_cast<std::int32_t>(index);
    std::memcpy(destination.data(), &value, sizeof(value));
    return sizeof(value);
  };
  EXPECT_EQ(narrowest_dtype(Dataset({read_callback({"x", DType::int32, {}}, 257, function)}), 0, nullptr),
            DType::uint16);
  EXPECT_EQ(narrowest_dtype(Dataset({read_callback({"x", DType::int32, {}}, 256, function)}), 0, nullptr),
            DType::uint8);
  const test::TempDirectory directory;
  std::vector<std::int64_t> labels(1000, 200);
  const auto bytes = std::as_bytes(std::span(labels));
  const auto file = directory.write("labels.npy", test::npy("<i8", "(1000,)", {bytes.begin(), bytes.end()}));
  const Dataset mapped({read_npy(file, {0})});
  ASSERT_TRUE(mapped.is_file_mapping(0));
  const Dataset narrow = narrow_integers(mapped);
  EXPECT_EQ(narrow.field(0).dtype, DType::uint8);
  EXPECT_FALSE(narrow.is_file_mapping(0));
  std::filesystem::resize_file(file, 500);
  expect_error<Error>([&] { static_cast<void>(narrowest_dtype(mapped, 0, nullptr)); }, {"cut short"});
}

TEST(NarrowField, NamesTheSampleThatNoLongerFits) {
  std::vector<std::int32_t> values(1000, 7);
  const Dataset narrow({narrow_field(
      read_array({"x", DType::int32, {2}}, std::as_bytes(std::span(values)), nullptr), DType::uint8)});
  std::vector<std::uint64_t> all(500);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(test::gather(narrow, 0, all), std::vector<std::byte>(1000, std::byte{7}));
  for (const std::int32_t value : {256, -1, 1 << 30}) {
    values[333 * 2 + 1] = value;
    expect_error<Error>([&] { static_cast<void>(test::gather(narrow, 0, all)); },
                        {"Sample 333", "'x'", "uint8"});
  }
}

TEST(NarrowField, RefusesWhatIsNotNarrower) {
  const auto wide = read_array({"x", DType::int16, {}}, std::vector<std::int16_t>(4));
  for (const DType dtype :
       {DType::int8, DType::uint16, DType::int16, DType::uint32, DType::boolean, DType::float16}) {
    expect_error<InvalidArgument>([&] { static_cast<void>(narrow_field(wide, dtype)); }, {"'x'", "int16"});
  }
  const auto real = read_array({"x", DType::float32, {}}, std::vector<float>(4));
  expect_error<InvalidArgument>([&] { static_cast<void>(narrow_field(real, DType::uint8)); }, {"float32"});
}

}  // namespace
}  // namespace penstock
