#include "loader/loader_fixture.hpp"
#include "support/bytes.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/loader/share_dataset.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::random_bytes;

constexpr std::uint64_t kSamples = 777;

MadeDataset never_made() { throw InvalidArgument("this one does not make it"); }

FieldReaderPtr field_of(Field field, const std::vector<std::byte>& bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(bytes);
  return read_array(std::move(field), std::span(*owner), owner);
}

std::string key_of_this(const char* test) { return std::string(test) + std::to_string(getpid()); }

TEST(ShareDatasetTest, AllHaveTheSameFieldsInTheSamePages) {
  const auto images = random_bytes(kSamples * 3 * 5 * 4, 1);
  const auto labels = random_bytes(kSamples * 8, 2);
  const ShareOptions options{.key = key_of_this("fields"), .processes = 2};
  const std::string note("any\0bytes\xff", 10);
  const auto make = [&] {
    return MadeDataset{Dataset({field_of({"images", DType::float32, {3, 5}}, images),
                                field_of({"labels", DType::uint16, {4}, DType::int64}, labels)}),
                       note};
  };
  const SharedDataset first = share_dataset(options, make);
  const SharedDataset second = share_dataset(options, &never_made);
  EXPECT_TRUE(first.pages->made_here);
  EXPECT_FALSE(second.pages->made_here);
  for (const SharedDataset* shared : {&first, &second}) {
    const Dataset& dataset = shared->dataset;
    EXPECT_EQ(shared->note, note);
    ASSERT_EQ(dataset.field_count(), 2U);
    EXPECT_EQ(dataset.sample_count(), kSamples);
    EXPECT_EQ(dataset.field(0).name, "images");
    EXPECT_EQ(dataset.field(0).dtype, DType::float32);
    EXPECT_EQ(dataset.field(0).shape, (Shape{3, 5}));
    EXPECT_EQ(dataset.field(0).narrowed_from, std::nullopt);
    EXPECT_EQ(dataset.field(1).narrowed_from, DType::int64);
    for (const auto& [field, bytes] : {std::pair(0, &images), std::pair(1, &labels)}) {
      const auto memory = dataset.memory(static_cast<std::size_t>(field));
      EXPECT_EQ(testing::first_difference({memory.begin(), memory.end()}, *bytes), -1);
      const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % page, 0U) << "each can be locked by itself";
    }
  }
  EXPECT_NE(first.dataset.memory(0).data(), second.dataset.memory(0).data());
  const_cast<std::byte&>(first.dataset.memory(0)[17]) = std::byte{1};
  EXPECT_EQ(second.dataset.memory(0)[17], std::byte{1}) << "the same pages";
  const_cast<std::byte&>(first.dataset.memory(0)[17]) = std::byte{2};
  EXPECT_EQ(second.dataset.memory(0)[17], std::byte{2});
}

TEST(ShareDatasetTest, FilesAreReadIntoThePages) {
  const test::TempDirectory directory;
  const auto bytes = random_bytes(kSamples * 100, 3);
  const auto path = directory.write("samples.bin", bytes);
  const SharedDataset shared = share_dataset({.key = key_of_this("files")}, [&] {
    return MadeDataset{Dataset({read_raw(path, {"samples", DType::uint8, {100}}, 0, {.load_limit = 0})})};
  });
  std::filesystem::remove(path);
  const auto memory = shared.dataset.memory(0);
  EXPECT_EQ(testing::first_difference({memory.begin(), memory.end()}, bytes), -1);
  EXPECT_FALSE(shared.dataset.is_file_mapping(0));
}

TEST(ShareDatasetTest, ReadingCanBeInterrupted) {
  struct Interrupted {};
  const auto bytes = random_bytes(kSamples * 100, 3);
  EXPECT_THROW(static_cast<void>(share_dataset(
                   {.key = key_of_this("interrupted"), .while_waiting = [] { throw Interrupted(); }},
                   [&] { return MadeDataset{Dataset({field_of({"x", DType::uint8, {100}}, bytes)})}; })),
               Interrupted);
}

TEST(ShareDatasetTest, FieldsOutsideThePagesAreRefused) {
  for (const auto& [offset, bytes] : {std::pair(0, 101), std::pair(64, 40), std::pair(1000, 8)}) {
    const ShareOptions options{.key = key_of_this("outside"), .processes = 2};
    const nlohmann::json field = {
        {"name", "x"}, {"dtype", "uint8"}, {"shape", Shape{}}, {"offset", offset}, {"bytes", bytes}};
    const nlohmann::json note = {{"fields", nlohmann::json::array({field})},
                                 {"note", nlohmann::json::binary({})}};
    std::string text;
    nlohmann::json::to_cbor(note, text);
    const CommonPages forged =
        share_pages(options, [&] { return MadePages{std::make_shared<const SharedPages>(100), text}; });
    try {
      static_cast<void>(share_dataset(options, &never_made));
      ADD_FAILURE() << offset << ' ' << bytes;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("smaller than the fields"));
    }
  }
}

TEST(ShareDatasetTest, WhatIsLargerThanMemoryIsRefusedBeforeItIsRead) {
  const std::uint64_t samples = host_topology().memory_bytes / 1000;
  const auto field = [&](const char* name, std::size_t bytes) {
    return read_callback({name, DType::uint8, {bytes}}, samples,
                         [](std::uint64_t, std::span<std::byte>) -> std::size_t { throw Error("read"); });
  };
  const auto expect_refused = [&](const Dataset& dataset, const char* name, std::size_t bytes) {
    try {
      static_cast<void>(share_dataset({.key = key_of_this("large")}, [&] { return MadeDataset{dataset}; }));
      ADD_FAILURE() << "it does not fit";
    } catch (const OutOfMemory& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
      EXPECT_EQ(error.asked(), samples * bytes);
    }
  };
  expect_refused(Dataset({field("alone", 2000)}), "'alone'", 2000);
  expect_refused(Dataset({field("first", 600), field("second", 700)}), "'second'", 700);
}

// Each has its own mapping and its own lock of the same pages.
class SharedLoaderTest : public testing::LoaderTest {};
PENSTOCK_DEVICE_SUITE(SharedLoaderTest);

TEST_P(SharedLoaderTest, TwoRanksGetEachSampleOnce) {
  const Dataset images({testing::random_field("images", DType::uint8, {64, 1000}, kSamples, 5),
                        testing::random_field("labels", DType::int64, {}, kSamples, 6)});
  const ShareOptions options{.key = key_of_this("ranks"), .processes = 2};
  const SharedDataset first = share_dataset(options, [&] { return MadeDataset{images}; });
  const SharedDataset second = share_dataset(options, &never_made);
  std::vector<std::uint64_t> seen;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    LoaderOptions loader_options{.batch_size = 50, .shuffle = true, .seed = 3};
    loader_options.shard = {.rank = rank, .world_size = 2, .drop_last = true};
    Loader loader((rank == 0 ? first : second).dataset, *device_, loader_options);
    const auto batches = read_epoch(loader);
    expect_stored(images, batches);
    const auto indices = indices_of(batches);
    seen.insert(seen.end(), indices.begin(), indices.end());
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen.size(), kSamples - 1);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

}  // namespace
}  // namespace penstock
