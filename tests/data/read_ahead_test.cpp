#include "data/read_ahead.hpp"

#include "data/cold_file.hpp"
#include "data/file.hpp"
#include "data/support.hpp"
#include "support/bytes.hpp"

#include <penstock/data/chunks.hpp>
#include <penstock/data/rows.hpp>

#include <fstream>
#include <memory>
#include <thread>

namespace penstock {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kSampleBytes = 25 * kPageBytes;
constexpr std::size_t kSampleCount = 800;
const Field kMapped{"x", DType::uint8, {kSampleBytes}};

/// A file of 78 MiB, whose samples are mapped.
class MappedSamples : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = directory_.path() / "x.bin";
    std::ofstream file(path_, std::ios::binary);
    std::vector<char> sample(kSampleBytes);
    for (std::size_t i = 0; i < kSampleCount; ++i) {
      sample.assign(kSampleBytes, static_cast<char>(i));
      file.write(sample.data(), kSampleBytes);
    }
  }

  [[nodiscard]] std::span<const std::byte> map() {
    const test::Descriptor opened(path_);
    void* const data = ::mmap(nullptr, kSampleBytes * kSampleCount, PROT_READ, MAP_SHARED, opened.get(), 0);
    mapping_.reset(static_cast<std::byte*>(data));
    return {mapping_.get(), kSampleBytes * kSampleCount};
  }

  /// Waits until the page cache has the pages that were asked for, and returns how many it has.
  [[nodiscard]] std::size_t pages_after(std::size_t expected) const {
    for (int tries = 0; tries < 1000 && test::cached_pages(path_) < expected; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return test::cached_pages(path_);
  }

  struct Unmap {
    void operator()(std::byte* data) const { ::munmap(data, kSampleBytes * kSampleCount); }
  };

  test::TempDirectory directory_;
  std::filesystem::path path_;
  std::unique_ptr<std::byte, Unmap> mapping_;
};

TEST_F(MappedSamples, OnADiskAreReadBeforeTheyAreTouched) {
  PENSTOCK_MAKE_COLD(path_);
  const auto mapped = map();
  std::vector<FieldReaderPtr> chunks;
  for (std::size_t i = 0; i < kSampleCount; i += 200) {
    chunks.push_back(read_array(kMapped, mapped.subspan(i * kSampleBytes, 200 * kSampleBytes), nullptr));
    EXPECT_FALSE(chunks.back()->is_on_disk()) << "it is small by itself";
  }
  const FieldReaderPtr readers[] = {
      read_array(kMapped, mapped, nullptr),
      read_strided({"x", DType::uint8, {kSampleBytes / 2}}, mapped.first(mapped.size() - kSampleBytes / 2),
                   kSampleBytes, nullptr),
      read_raw(path_, kMapped),
      read_chunks("x", chunks),
  };
  for (const FieldReaderPtr& reader : readers) {
    ::madvise(mapping_.get(), mapped.size(), MADV_DONTNEED);  // the cache keeps pages that are mapped
    ASSERT_TRUE(test::make_cold(path_));
    ASSERT_TRUE(reader->is_on_disk());
    const std::vector<std::uint64_t> indices = {700, 3, 401};
    reader->ask_ahead(indices);
    const std::size_t pages = reader->field().sample_bytes() / kPageBytes * indices.size();
    EXPECT_GE(pages_after(pages), pages);
    EXPECT_LT(test::cached_pages(path_), kSampleBytes / kPageBytes * kSampleCount / 4)
        << "only what was asked for";
    std::vector<std::byte> got(reader->field().sample_bytes());
    for (const std::uint64_t index : indices) {
      reader->gather({&index, 1}, got, StoreKind::cached);
      EXPECT_TRUE(testing::is_filled(got, static_cast<std::byte>(index)));
    }
  }
}

TEST_F(MappedSamples, InMemoryAreNotAskedFor) {
  const auto mapped = map();
  std::vector<std::byte> all(mapped.begin(), mapped.end());
  EXPECT_FALSE(read_array(kMapped, mapped, nullptr)->is_on_disk());
  EXPECT_FALSE(read_raw(path_, kMapped)->is_on_disk());
}

TEST_F(MappedSamples, AreLookedAtAgain) {
  PENSTOCK_MAKE_COLD(path_);
  const auto mapped = map();
  const ReadAhead ahead({mapped});
  ASSERT_TRUE(ahead.is_on_disk());
  const std::vector<std::byte> all(mapped.begin(), mapped.end());
  for (int asked = 0; asked < 1 << 16; ++asked) ahead.ask(mapped.first(1));
  EXPECT_FALSE(ahead.is_on_disk());
}

TEST(ReadAhead, MemoryThatNobodyTouchedIsOnNoDisk) {
  const HostPages untouched(std::size_t{80} << 20);
  EXPECT_FALSE(ReadAhead({untouched.bytes()}).is_on_disk());
}

}  // namespace
}  // namespace penstock
