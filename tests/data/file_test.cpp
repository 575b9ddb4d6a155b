#include "data/file.hpp"

#include "data/file_reader.hpp"
#include "data/support.hpp"

#include <penstock/core/log.hpp>
#include <penstock/data/open_dataset.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <numeric>
#include <string_view>

namespace penstock {
namespace {

using test::expect_error;
using test::read_all;

class Files : public ::testing::Test {
 protected:
  test::TempDirectory directory_;
};

TEST_F(Files, NpyGivesNameTypeAndShapeOfASample) {
  const auto data = test::random_bytes(5 * 2 * 3 * 4, 1);
  const auto reader = read_npy(directory_.write("images.train.npy", test::npy("<f4", "(5, 2, 3)", data)));
  EXPECT_EQ(reader->field().name, "images.train");
  EXPECT_EQ(reader->field().dtype, DType::float32);
  EXPECT_EQ(reader->field().shape, (Shape{2, 3}));
  EXPECT_EQ(reader->sample_count(), 5u);
  EXPECT_EQ(read_all(Dataset({reader}), 0), data);
}

TEST_F(Files, NpyErrorsSayWhereAndWhat) {
  const auto refuses = [&](const std::vector<std::byte>& content, const std::vector<std::string>& parts) {
    const auto file = directory_.write("x.npy", content);
    expect_error<Error>([&] { static_cast<void>(read_npy(file)); }, parts);
  };
  const auto data = test::random_bytes(24, 2);
  refuses(test::npy(">f4", "(2, 3)", data), {"x.npy, byte 20:", "big-endian", "astype('<f4')"});
  refuses(test::npy("<f4", "(20000000000000000000,)", data), {"x.npy, byte", "a number past 2^64"});
  refuses(test::npy("|O", "(3,)", data), {"x.npy, byte 20:", "Python objects"});
  refuses(test::npy("<f4", "(2, 4)", data),
          {"x.npy, byte 152:", "32 bytes of data (2x4 of float32)", "24 bytes"});
  refuses(test::npy("<f4", "(2, 2)", data),
          {"x.npy, byte 144:", "16 bytes of data (2x2 of float32)", "24 bytes"});
  refuses(test::npy("<f4", "(0, 3)", {}), {"x.npy, byte", "at least one sample", "zero samples"});
}

TEST_F(Files, RawTakesTheFileFromAnOffsetToItsEnd) {
  const auto data = test::random_bytes(60, 5);
  const auto file = directory_.write("x.bin", data);
  const Field field{"x", DType::uint16, {5}};
  EXPECT_EQ(read_all(Dataset({read_raw(file, field)}), 0), data);
  const Dataset part({read_raw(file, field, 20)});
  EXPECT_EQ(part.sample_count(), 4u);
  EXPECT_EQ(read_all(part, 0), std::vector<std::byte>(data.begin() + 20, data.end()));
  expect_error<Error>([&] { static_cast<void>(read_raw(file, field, 15)); },
                      {"x.bin", "45 bytes", "samples of 10"});
  expect_error<Error>([&] { static_cast<void>(read_raw(file, field, 60)); }, {"0 bytes"});
  expect_error<Error>([&] { static_cast<void>(read_raw(file, field, 61)); }, {"0 bytes"});
}

TEST_F(Files, ACutWhileMappedIsAnErrorAndNoSignal) {
  const auto data = test::random_bytes(100 * 1000, 6);
  const auto file = directory_.write("x.npy", test::npy("|u1", "(100, 1000)", data));
  const Dataset dataset({read_npy(file, {0})});
  ASSERT_TRUE(dataset.is_file_mapping(0));
  ASSERT_EQ(read_all(dataset, 0), data);
  std::filesystem::resize_file(file, 128 + 40 * 1000 + 500);
  const std::vector<std::uint64_t> there = {39, 0, 12};
  EXPECT_EQ(test::gather(dataset, 0, there), test::pick(data, 1000, there));
  const std::vector<std::uint64_t> half = {3, 40};
  expect_error<Error>([&] { static_cast<void>(test::gather(dataset, 0, half)); },
                      {"x.npy", "cut short", "ends at byte 40628", "sample 40", "'x'", "byte 41128"});
  const std::vector<std::uint64_t> run = {38, 39, 40, 41};
  expect_error<Error>([&] { static_cast<void>(test::gather(dataset, 0, run)); }, {"sample 40"});
  std::filesystem::resize_file(file, 0);
  expect_error<Error>([&] { static_cast<void>(test::gather(dataset, 0, there)); },
                      {"cut short", "ends at byte 0,", "sample 39"});
}

TEST_F(Files, WindowsMayOverlapAndLeaveARest) {
  const auto data = test::random_bytes(1003, 5);
  for (const std::uint64_t load_limit : {0, 1003}) {
    for (const std::uint64_t stride : {3, 10, 400}) {
      const auto file = directory_.write("x.bin", data);
      const Field field{"x", DType::uint16, {5}};
      const Dataset windows({read_windows(file, field, stride, {load_limit})});
      ASSERT_EQ(windows.sample_count(), 993 / stride + 1);
      const std::vector<std::uint64_t> some = {windows.sample_count() - 1, 0, 1};
      std::vector<std::byte> expected;
      for (const std::uint64_t i : some) {
        const auto begin = data.begin() + static_cast<std::ptrdiff_t>(i * stride);
        expected.insert(expected.end(), begin, begin + 10);
        EXPECT_EQ(*windows.reader(0)->address(i), *begin);
      }
      EXPECT_EQ(test::gather(windows, 0, some), expected);
      EXPECT_EQ(windows.memory(0).empty() && !windows.is_file_mapping(0), stride != 10 || load_limit > 0);
      std::filesystem::resize_file(file, 500);
      if (load_limit > 0) continue;
      expect_error<Error>([&] { static_cast<void>(test::gather(windows, 0, some)); },
                          {"x.bin", "cut short", "ends at byte 500", fmt::format("sample {}", some[0])});
    }
  }
  const auto file = directory_.write("x.bin", test::random_bytes(9, 5));
  for (const std::uint64_t stride : {0, 1}) {
    expect_error<Error>(
        [&] { static_cast<void>(read_windows(file, {"x", DType::uint8, {9 + stride}}, stride)); },
        {"x.bin has 9 bytes", "do not fit"});
  }
}

TEST_F(Files, ACutWhileLoadedIsAnError) {
  const auto path = directory_.write("x.bin", test::random_bytes(1000, 6));
  const File file(path);
  std::filesystem::resize_file(path, 300);
  expect_error<Error>([&] { return read_file(file, {"x", DType::uint8, {10}}, 0, 100, {}); },
                      {"x.bin was cut short while it was read", "ends at byte 300, not 1000"});
}

TEST_F(Files, AreClosedWhenTheLastHandleGoes) {
  const auto path = directory_.write("x.bin", test::random_bytes(10, 6));
  int descriptor = -1;
  {
    const File file(path);
    const File copy = file;
    descriptor = copy.descriptor();
    EXPECT_EQ(::fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(::fcntl(descriptor, F_GETFD), -1);
}

TEST_F(Files, AReadThatTheSystemRefusesIsAnError) {
  const File file("/proc/self/mem");  // nothing is mapped at its beginning
  std::array<std::byte, 16> bytes;
  expect_error<Error>([&] { return file.read(0, bytes); }, {"/proc/self/mem", "16 bytes at byte 0 failed"});
}

TEST_F(Files, PagesThatCannotBeHadAreRefused) {
  expect_error<OutOfMemory>([] { return HostPages(std::size_t{1} << 60).bytes().size(); }, {"host memory"});
}

TEST_F(Files, PagesAndMappingsGoWithTheirReader) {
  const auto path = directory_.write("x.bin", test::random_bytes(1000, 6));
  for (const std::uint64_t load_limit : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    auto reader = read_raw(path, {"x", DType::uint8, {10}}, 0, {load_limit});
    auto* const data = const_cast<std::byte*>(reader->memory().data());
    unsigned char present = 0;
    EXPECT_EQ(::mincore(data, 1, &present), 0);
    reader.reset();
    EXPECT_EQ(::mincore(data, 1, &present), -1);
  }
}

TEST_F(Files, AMappingThatCannotBeHadLeavesTheFileToBeRead) {
  const auto data = test::random_bytes(1000, 6);
  const File file(directory_.write("x.bin", data));
  const auto reader = read_file(file, {"x", DType::uint64, {}}, 0, std::uint64_t{1} << 45, {0});
  EXPECT_FALSE(reader->is_file_mapping());
  EXPECT_TRUE(reader->memory().empty());
  const Dataset dataset({reader});
  const std::vector<std::uint64_t> some = {3, 0};
  EXPECT_EQ(test::gather(dataset, 0, some), test::pick(data, 8, some));
}

TEST_F(Files, SmallFilesAreLoadedAndOutliveTheirFile) {
  const auto data = test::random_bytes(300, 7);
  const auto file = directory_.write("x.npy", test::npy("|u1", "(100, 3)", data));
  const Dataset dataset({read_npy(file)});
  EXPECT_FALSE(dataset.is_file_mapping(0));
  std::filesystem::resize_file(file, 0);
  EXPECT_EQ(read_all(dataset, 0), data);
}

TEST_F(Files, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  expect_error<Error>([&] { static_cast<void>(read_npy(directory_.path() / "none.npy")); },
                      {"none.npy", "cannot be opened", "No such file"});
  expect_error<Error>([&] { static_cast<void>(read_npy(directory_.path())); }, {"not a regular file"});
  const auto pipe = directory_.path() / "pipe.npy";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error<Error>([&] { static_cast<void>(read_npy(pipe)); }, {"pipe.npy", "not a regular file"});
}

TEST_F(Files, OpenTellsFormatsApartByContent) {
  const auto data = test::random_bytes(12, 8);
  const auto a = directory_.write("a.dat", test::npy("<i4", "(3,)", data));
  const auto b = directory_.write(
      "b.dat",
      test::joined(
          test::joined(std::vector<std::byte>{std::byte{59}}, std::vector<std::byte>(7)),
          test::joined(test::bytes_of(R"({"b":{"dtype":"U8","shape":[3,4],"data_offsets":[0,12]}}   )"),
                       data)));
  const Dataset dataset = open_dataset({a, b});
  ASSERT_EQ(dataset.field_count(), 2u);
  EXPECT_EQ(dataset.field(0).dtype, DType::int32);
  EXPECT_EQ(dataset.field(1).dtype, DType::uint8);
  for (std::size_t field = 0; field < 2; ++field) EXPECT_EQ(read_all(dataset, field), data);
  const auto noise = directory_.write("noise.npy", test::bytes_of("neither nor"));
  expect_error<Error>([&] { return open_dataset({noise}); },
                      {"noise.npy, byte 0", ".npy", ".npz", ".safetensors", "numpy.save"});
  const auto longer = directory_.write("d.npy", test::npy("|u1", "(12,)", data));
  expect_error<InvalidArgument>([&] { return open_dataset({a, longer}); }, {"'a' has 3", "'d' has 12"});
  expect_error<InvalidArgument>([] { return open_dataset({}); }, {"No dataset"});
}

TEST_F(Files, OpenTakesLiteralsInBraces) {
  expect_error<InvalidArgument>([] { return open_dataset({"no such images.npy", "no such labels.npy"}); },
                                {"'no such images.npy'"});
  expect_error<InvalidArgument>([] { return open_dataset({"no such name"}); }, {"'no such name'"});
}

TEST_F(Files, AnEmptyNameIsNoDataset) {
  expect_error<InvalidArgument>([&] { return open_dataset({""}); }, {"empty", "give a file or a directory"});
}

TEST_F(Files, ALinkThatLeadsNowhereLeavesTheRestOfItsDirectory) {
  const auto data = test::random_bytes(12, 14);
  directory_.write("set/images.npy", test::npy("|u1", "(3, 4)", data));
  const auto loop = directory_.path() / "set" / "loop.npy";
  std::filesystem::create_symlink("loop.npy", loop);
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  const Dataset dataset = open_dataset({directory_.path() / "set"});
  set_log_sink({});
  ASSERT_EQ(dataset.field_count(), 1u);
  EXPECT_EQ(read_all(dataset, 0), data);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(loop.string()), std::string::npos) << lines[0];
  expect_error<Error>([&] { return open_dataset({loop}); }, {"loop.npy cannot be opened"});
}

TEST_F(Files, OpenTakesADirectoryOfArrays) {
  const auto data = test::random_bytes(12, 13);
  directory_.write("set/train/images.npy", test::npy("|u1", "(3, 4)", data));
  directory_.write("set/train/labels.npy", test::npy("<i4", "(3,)", data));
  directory_.write("set/train/README", test::bytes_of("words"));
  const Dataset dataset = open_dataset({directory_.path() / "set" / "train"});
  EXPECT_EQ(dataset.field_count(), 2u);
  EXPECT_EQ(dataset.field(1).name, "labels");
  expect_error<InvalidArgument>(
      [&] { return open_dataset({directory_.path() / "set"}); },
      {"set holds no .npy, .npz or .safetensors files", "the folder that holds them"});
}

}  // namespace
}  // namespace penstock
