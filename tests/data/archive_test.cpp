#include "data/packed.hpp"
#include "data/support.hpp"

#include <penstock/data/open_dataset.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace penstock {
namespace {

using test::expect_error;
using test::read_all;

void put(std::vector<std::byte>& bytes, std::uint64_t number, int count) {
  for (int i = 0; i < count; ++i, number >>= 8) bytes.push_back(static_cast<std::byte>(number));
}

struct Member {
  std::string name;
  std::vector<std::byte> content;
  bool deflate = false;
  std::vector<std::byte> extra{};  ///< of both headers
  bool sizes_elsewhere = false;    ///< in the extra field, as in an archive of more than 4 GiB
};

/// A .zip archive's bytes.
std::vector<std::byte> zip(const std::vector<Member>& members) {
  std::vector<std::byte> archive;
  std::vector<std::byte> directory;
  for (const Member& member : members) {
    const auto data = member.deflate ? test::deflated(member.content) : member.content;
    std::vector<std::byte> common;  // of the local header and the directory
    put(common, 20, 2);
    put(common, 0, 2);
    put(common, member.deflate ? 8 : 0, 2);
    put(common, 0, 4);
    put(common, crc32_z(0, reinterpret_cast<const Bytef*>(member.content.data()), member.content.size()), 4);
    put(common, member.sizes_elsewhere ? 0xFFFFFFFF : data.size(), 4);
    put(common, member.sizes_elsewhere ? 0xFFFFFFFF : member.content.size(), 4);
    put(common, member.name.size(), 2);
    put(common, member.extra.size(), 2);
    const std::size_t offset = archive.size();
    put(archive, 0x04034b50, 4);
    archive = test::joined(test::joined(std::move(archive), common), test::bytes_of(member.name));
    archive = test::joined(test::joined(std::move(archive), member.extra), data);
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);
    directory = test::joined(std::move(directory), common);
    put(directory, 0, 10);
    put(directory, offset, 4);
    directory = test::joined(test::joined(std::move(directory), test::bytes_of(member.name)), member.extra);
  }
  const std::size_t offset = archive.size();
  archive = test::joined(std::move(archive), directory);
  put(archive, 0x06054b50, 4);
  put(archive, 0, 4);
  put(archive, members.size(), 2);
  put(archive, members.size(), 2);
  put(archive, directory.size(), 4);
  put(archive, offset, 4);
  put(archive, 0, 2);
  return archive;
}

/// A .safetensors file's bytes.
std::vector<std::byte> safetensors(const std::string& header, const std::vector<std::byte>& data) {
  std::vector<std::byte> file;
  put(file, header.size(), 8);
  return test::joined(test::joined(std::move(file), test::bytes_of(header)), data);
}

class Archives : public ::testing::Test {
 protected:
  std::vector<std::byte> images_ = test::random_bytes(std::size_t{500} * 28 * 28, 1);
  std::vector<std::byte> labels_ = test::random_bytes(std::size_t{500} * 8, 2);
  test::TempDirectory directory_;

  [[nodiscard]] std::filesystem::path write_npz(bool deflate) const {
    return directory_.write(deflate ? "deflated.npz" : "set.npz",
                            zip({{"images.npy", test::npy("|u1", "(500, 28, 28)", images_), deflate},
                                 {"labels.npy", test::npy("<i8", "(500,)", labels_), deflate}}));
  }
  [[nodiscard]] std::filesystem::path write_safetensors() const {
    return directory_.write(
        "set.safetensors",
        safetensors(R"({"labels": {"dtype": "I64", "shape": [500], "data_offsets": [392000, 396000]},)"
                    R"( "images": {"dtype": "U8", "shape": [500, 28, 28], "data_offsets": [0, 392000]}})",
                    test::joined(images_, labels_)));
  }
  void expect_images_and_labels(const Dataset& dataset) const {
    ASSERT_EQ(dataset.field_count(), 2u);
    EXPECT_EQ(dataset.sample_count(), 500u);
    EXPECT_EQ(dataset.field(0).name, "images");
    EXPECT_EQ(dataset.field(0).dtype, DType::uint8);
    EXPECT_EQ(dataset.field(0).shape, (Shape{28, 28}));
    EXPECT_EQ(dataset.field(1).name, "labels");
    EXPECT_EQ(dataset.field(1).dtype, DType::int64);
    EXPECT_EQ(dataset.field(1).shape, Shape{});
    EXPECT_EQ(read_all(dataset, 0), images_);
    EXPECT_EQ(read_all(dataset, 1), labels_);
  }
};

TEST_F(Archives, AMatchThatCrossesTheEndOfWhatIsAskedForIsReadToItsEnd) {
  // The head of a member is 64 KiB. At some of these sizes zlib has then read all input, and holds the rest
  // of a match.
  for (std::size_t samples = 65400; samples < 65480; ++samples) {
    const std::vector<std::byte> zeros(samples);
    const auto path = directory_.write(
        "zeros.npz", zip({{"labels.npy", test::npy("|u1", fmt::format("({},)", samples), zeros), true}}));
    EXPECT_EQ(read_all(open_dataset({path}), 0), zeros) << samples;
  }
}

TEST_F(Archives, AHeaderOfManyLevelsNeedsNoDeepStack) {
  const std::string levels = "{\"a\":{\"made\":" + std::string(1'000'000, '[');
  const auto path = directory_.write("deep.safetensors", safetensors(levels, {}));
  EXPECT_THAT([&] { (void)open_dataset({path}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("a header in JSON")));
}

TEST_F(Archives, EachArrayIsAField) {
  for (const std::uint64_t load_limit : {std::uint64_t{0}, std::uint64_t{1} << 30}) {
    for (const bool deflate : {false, true}) {
      const Dataset dataset = open_dataset({write_npz(deflate)}, {load_limit});
      expect_images_and_labels(dataset);
      EXPECT_EQ(dataset.is_file_mapping(0), load_limit == 0 && !deflate);
      EXPECT_EQ(dataset.memory(0).size(), images_.size());
    }
    const Dataset dataset = open_dataset({write_safetensors()}, {load_limit});
    expect_images_and_labels(dataset);
    EXPECT_EQ(dataset.is_file_mapping(1), load_limit == 0);
  }
}

TEST_F(Archives, LoadedArraysBeginOnPagesAndOutliveTheirFile) {
  for (const auto& file : {write_npz(false), write_npz(true), write_safetensors()}) {
    const Dataset dataset = open_dataset({file});
    std::filesystem::resize_file(file, 0);
    expect_images_and_labels(dataset);
    for (const std::size_t field : {0u, 1u}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(dataset.memory(field).data()) % 4096, 0u);
    }
  }
}

TEST_F(Archives, ACutWhileMappedIsAnErrorAndNoSignal) {
  for (const auto& file : {write_npz(false), write_safetensors()}) {
    const Dataset dataset = open_dataset({file}, {0});
    std::filesystem::resize_file(file, 200'000);
    const std::vector<std::uint64_t> there{3, 100};
    EXPECT_EQ(test::gather(dataset, 0, there), test::pick(images_, 28 * 28, there));
    const std::vector<std::uint64_t> gone{3, 400};
    expect_error<Error>([&] { return test::gather(dataset, 0, gone); },
                        {file.string(), "cut short", "sample 400", "'images'"});
  }
}

TEST_F(Archives, StandBesideFilesAndInDirectories) {
  const auto weights = test::random_bytes(500 * 4, 3);
  static_cast<void>(write_npz(true));
  directory_.write("weights.npy", test::npy("<f4", "(500,)", weights));
  directory_.write("model.zip", zip({{"notes.txt", weights}}));
  const Dataset dataset = open_dataset({directory_.path()});
  ASSERT_EQ(dataset.field_count(), 3u);
  EXPECT_EQ(dataset.field(2).name, "weights");
  EXPECT_EQ(read_all(dataset, 2), weights);
  EXPECT_EQ(dataset_files({directory_.path()}),
            (std::vector<std::filesystem::path>{directory_.path() / "deflated.npz",
                                                directory_.path() / "weights.npy"}));
}

TEST_F(Archives, ErrorsNameTheMember) {
  const auto refuses = [&](const std::vector<std::byte>& content, const std::vector<std::string>& parts) {
    const auto file = directory_.write("x.npz", content);
    for (const std::uint64_t load_limit : {std::uint64_t{0}, std::uint64_t{1} << 30}) {
      expect_error<Error>([&] { return open_dataset({file}, {load_limit}); }, parts);
    }
  };
  const auto data = test::random_bytes(24, 4);
  refuses(zip({{"a.npy", test::npy("|u1", "(24,)", data)}, {"b.npy", test::npy(">f4", "(6,)", data)}}),
          {"x.npz (b.npy), byte 20:", "big-endian"});
  refuses(zip({{"a.npy", test::npy("|u1", "(24,)", data)}, {"b.npy", test::npy("<f4", "(6,)", data)}}),
          {"x.npz", "'a' has 24 and 'b' has 6", "file of their own"});
  refuses(zip({{"a.npy", test::npy("|u1", "(24,)", data)}, {"notes.txt", data}}),
          {"x.npz, byte", "'notes.txt'"});
  refuses(safetensors(R"({"w": {"dtype": "F8_E4M3", "shape": [24], "data_offsets": [0, 24]}})", data),
          {"(w), byte 8:", "F8_E4M3"});
  refuses(safetensors(R"({"v": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},)"
                      R"( "w": {"dtype": "U8", "shape": [20], "data_offsets": [4, 24]}})",
                      data),
          {"'v' has 4 and 'w' has 20"});
}

TEST_F(Archives, RecordsThatEndTooSoonAreNotReadPastTheirEnd) {
  const auto data = test::random_bytes(24, 4);
  Member member{"a.npy", test::npy("|u1", "(24,)", data)};
  put(member.extra, 2, 2);  // a field that claims 80 bytes and has none
  put(member.extra, 80, 2);
  EXPECT_EQ(read_all(open_dataset({directory_.write("x.npz", zip({member}))}), 0), data);
  member.sizes_elsewhere = true;
  member.extra.clear();
  put(member.extra, 1, 2);
  put(member.extra, 4, 2);
  put(member.extra, 0, 4);
  expect_error<Error>([&] { return open_dataset({directory_.write("x.npz", zip({member}))}); },
                      {"x.npz, byte", "a number of 64 bits"});
  auto archive = zip({{"a.npy", test::npy("|u1", "(24,)", data)}});
  const std::size_t entry = archive.size() - 22 - (46 + 5);
  archive[entry + 29] = std::byte{0x70};  // the length of its name
  expect_error<Error>([&] { return open_dataset({directory_.write("x.npz", archive)}); },
                      {"x.npz, byte", "an entry within the directory"});
}

TEST_F(Archives, ADirectoryThatIsTooLargeGetsNoMemory) {
  constexpr std::size_t kBytes = std::size_t{65} << 20;
  const auto path = directory_.write("x.npz", zip({{"a.npy", {}}}));
  std::vector<std::byte> end;
  put(end, 0x06054b50, 4);
  put(end, 0, 4);
  put(end, 1, 2);
  put(end, 1, 2);
  put(end, kBytes, 4);
  put(end, 0, 4);
  put(end, 0, 2);
  std::filesystem::resize_file(path, kBytes);
  std::ofstream(path, std::ios::binary | std::ios::app)
      .write(reinterpret_cast<const char*>(end.data()), static_cast<std::streamsize>(end.size()));
  expect_error<Error>([&] { return open_dataset({path}); }, {"x.npz, byte", "at most 64 MiB"});
}

TEST_F(Archives, ChecksumsOfWhatIsLoadedAreCompared) {
  const auto data = test::random_bytes(24, 4);
  auto archive = zip({{"a.npy", test::npy("|u1", "(24,)", data)}});
  auto damaged = archive;
  const auto place = std::search(damaged.begin(), damaged.end(), data.begin(), data.end());
  ASSERT_NE(place, damaged.end());
  *place ^= std::byte{1};
  EXPECT_EQ(read_all(open_dataset({directory_.write("x.npz", archive)}), 0), data);
  expect_error<Error>([&] { return open_dataset({directory_.write("x.npz", damaged)}); },
                      {"x.npz (a.npy)", "checksum", "damaged"});
}

TEST_F(Archives, AHeaderThatLiesGetsNoMemory) {
  auto archive = zip({{"a.npy", test::npy("|u1", "(1099511627776,)", test::random_bytes(100, 5)), true}});
  expect_error<Error>([&] { return open_dataset({directory_.write("x.npz", archive)}); },
                      {"x.npz (a.npy)", "1099511627776"});
}

TEST_F(Archives, OtherFormatsAreShownTheirConversion) {
  const auto shows = [&](const std::string& name, const std::string& content,
                         const std::vector<std::string>& parts) {
    const auto file = directory_.write(name, test::bytes_of(content));
    expect_error<Error>([&] { return open_dataset({file}); }, parts);
  };
  const std::string here = directory_.path().string();
  shows("x.csv", "a,b\n1,2\n",
        {"x.csv: CSV files are not read", "read_csv('" + here + "/x.csv')", "savez('" + here + "/x.npz'"});
  shows("y.parquet", "PAR1....PAR1",
        {"Parquet files are not read", "read_parquet('" + here + "/y.parquet')"});
  shows("z.PT", "PK", {"PyTorch files are not read", "torch.load('" + here + "/z.PT')"});
  shows("it's.csv", "a\n", {"read_csv('data.csv')", "savez('data.npz'"});
  shows("i-idx2-ubyte", std::string("\0\0\x08\x02\0\0\0\1\0\0\0\2ab", 14),
        {"IDX files are not read", "fromfile('" + here + "/i-idx2-ubyte', '>u4', 2, offset=4)",
         "'>u1', offset=12)", "save('" + here + "/i-idx2-ubyte.npy'"});
  shows("i.idx1", std::string("\0\0\x0D\x01\0\0\0\1abcd", 12),
        {"'>f4', offset=8)", "/i.npy'", "astype('f4')"});
  shows("i.gz", "\x1F\x8B\x08", {"files in gzip format are not read", "gunzip -k '" + here + "/i.gz'"});
}

}  // namespace
}  // namespace penstock
