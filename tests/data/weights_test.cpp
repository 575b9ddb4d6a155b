#include "data/support.hpp"
#include "data/weight_files.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/file_error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/data/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>

namespace penstock {
namespace {

using test::expect_error;
using test::Weight;
using testing::kPoison;

class Weights : public ::testing::Test {
 protected:
  /// Tensors of every type and odd size: the offsets in the file are unaligned.
  static std::vector<Weight> mixed() {
    std::vector<Weight> weights{
        {"bias", "BF16", {3}},         {"scalar", "F64", {}},
        {"flags", "BOOL", {13}},       {"none", "F32", {0, 7}},
        {"wide", "F32", {129, 33}},    {"half", "F16", {5, 1, 5}},
        {"bytes", "U8", {4099}},       {"signed", "I8", {1}},
        {"u16", "U16", {3}},           {"i16", "I16", {7}},
        {"u32", "U32", {9}},           {"i32", "I32", {1, 1, 2}},
        {"u64", "U64", {5}},           {"i64", "I64", {300, 101}},
        {"eight", "F8_E4M3", {17}},    {"other eight", "F8_E5M2", {2, 2}},
        {"four", "F4", {3, 2}},        {"complex", "C64", {}},
        {"z8", "F8_E4M3FNUZ", {3}},    {"nothing", "I64", {0}},
        {"z5", "F8_E5M2FNUZ", {0, 3}},
    };
    test::fill_randomly(weights, 1);
    return weights;
  }

  [[nodiscard]] std::filesystem::path write(const std::string& name,
                                            const std::vector<Weight>& weights) const {
    return directory_.write(name, test::safetensors(weights));
  }

  /// The whole block, read in parts of `part` bytes over poison.
  static std::vector<std::byte> read(const WeightFile& file, std::size_t part) {
    std::vector<std::byte> block(file.bytes(), kPoison);
    for (std::size_t at = 0; at < block.size(); at += part) {
      file.read(at, std::span(block).subspan(at, std::min(part, block.size() - at)));
    }
    return block;
  }

  /// `file` holds these, in this order, each aligned, and `block` their bytes.
  static void expect_weights(const WeightFile& file, const std::vector<std::byte>& block,
                             const std::vector<Weight>& weights) {
    ASSERT_EQ(file.tensors().size(), weights.size());
    std::vector<std::byte> expected(file.bytes());
    std::size_t end = 0;
    std::size_t sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const WeightTensor& tensor = file.tensors()[i];
      EXPECT_EQ(tensor.name, weights[i].name);
      EXPECT_EQ(tensor.type, weights[i].type);
      EXPECT_EQ(tensor.shape, weights[i].shape);
      EXPECT_EQ(tensor.bytes, weights[i].data.size());
      EXPECT_EQ(tensor.offset % WeightFile::kAlignment, 0u);
      EXPECT_GE(tensor.offset, end);
      end = tensor.offset + tensor.bytes;
      sum += tensor.bytes;
      ASSERT_LE(end, file.bytes());
      std::ranges::copy(weights[i].data, expected.begin() + static_cast<std::ptrdiff_t>(tensor.offset));
    }
    EXPECT_EQ(file.tensor_bytes(), sum);
    EXPECT_TRUE(block == expected);
  }

  test::TempDirectory directory_;
};

TEST_F(Weights, AnyPartOfTheBlockIsRead) {
  const auto weights = mixed();
  const WeightFile file(write("model.safetensors", weights));
  for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::size_t{511}, std::size_t{4096},
                                 std::size_t{100'000}, file.bytes()}) {
    SCOPED_TRACE(part);
    expect_weights(file, read(file, part), weights);
  }
  EXPECT_EQ(file.tensors()[0].dtype, DType::bfloat16);
  EXPECT_EQ(file.tensors()[14].dtype, std::nullopt);
}

TEST_F(Weights, TensorsThatAreAlignedInTheFileAreReadTogether) {
  std::vector<Weight> weights{{"a", "U8", {512}}, {"b", "F32", {128, 3}}, {"c", "I8", {1}}, {"d", "I8", {3}}};
  test::fill_randomly(weights, 2);
  const WeightFile file(write("even.safetensors", weights));
  for (const std::size_t part : {std::size_t{300}, file.bytes()}) {
    expect_weights(file, read(file, part), weights);
  }
  // They lie side by side in the block, and apart in the file.
  const WeightFile some = file.select({"c", "a"});
  expect_weights(some, read(some, some.bytes()), {weights[0], weights[2]});
}

TEST_F(Weights, SeveralThreadsReadTheWholeBlock) {
  std::vector<Weight> weights{{"a", "U8", {3'000'001}}, {"b", "F32", {777, 1001}}, {"c", "I64", {}}};
  test::fill_randomly(weights, 3);
  const WeightFile file(write("large.safetensors", weights));
  HostWorkers workers({.threads = 3, .on_start = {}});
  std::vector<std::byte> block(file.bytes(), kPoison);
  file.read_all(workers, block);
  expect_weights(file, block, weights);
  expect_error<InvalidArgument>([&] { return file.read_all(workers, std::span(block).first(512)), 0; },
                                {"512 bytes"});
  const std::atomic<bool> stop{true};
  expect_error<Closed>([&] { return file.read_all(workers, block, &stop), 0; },
                       {"large.safetensors", "stopped"});
}

TEST_F(Weights, BytesPastTheBlockAreRefused) {
  const WeightFile file(write("model.safetensors", mixed()));
  std::vector<std::byte> bytes(2);
  expect_error<InvalidArgument>([&] { return file.read(file.bytes() - 1, bytes), 0; }, {"2 bytes"});
  expect_error<InvalidArgument>([&] { return file.read(file.bytes() + 1, std::span(bytes).first(0)), 0; },
                                {});
  file.read(file.bytes(), std::span(bytes).first(0));
}

TEST_F(Weights, AFileWithoutBytes) {
  const WeightFile empty(write("empty.safetensors", {}));
  EXPECT_TRUE(empty.tensors().empty());
  EXPECT_EQ(empty.bytes(), 0u);
  empty.read(0, {});
  const WeightFile none(write("none.safetensors", {{"a", "F32", {0}}, {"b", "F32", {3, 0}}}));
  EXPECT_EQ(none.tensors().size(), 2u);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST_F(Weights, SomeTensorsByName) {
  const auto weights = mixed();
  const std::vector<std::filesystem::path> files{write("model.safetensors", weights)};
  const std::vector<std::string> names{"wide", "scalar", "eight", "none"};
  const auto opened = open_weights(files, names);
  ASSERT_EQ(opened.size(), 1u);
  std::vector<Weight> chosen;
  std::ranges::copy_if(weights, std::back_inserter(chosen), [&](const Weight& each) {
    return std::ranges::find(names, each.name) != names.end();
  });
  expect_weights(opened[0], read(opened[0], 1000), chosen);
  EXPECT_TRUE(open_weights(files, std::vector<std::string>{}).empty());
}

TEST_F(Weights, ManyFilesAreOneSet) {
  std::vector<std::filesystem::path> files;
  std::vector<std::vector<Weight>> contents;
  for (std::uint64_t i = 0; i < 5; ++i) {
    contents.push_back(
        {{fmt::format("layer.{}.weight", i), "F32", {7, i}}, {fmt::format("layer.{}.bias", i), "U8", {9}}});
    test::fill_randomly(contents.back(), i);
    files.push_back(write(fmt::format("part-{}.safetensors", i), contents.back()));
  }
  const auto all = open_weights(files);
  ASSERT_EQ(all.size(), 5u);
  for (std::size_t i = 0; i < all.size(); ++i) expect_weights(all[i], read(all[i], 64), contents[i]);
  const auto some = open_weights(files, std::vector<std::string>{"layer.3.bias", "layer.1.weight"});
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].name(), files[1].string());
  EXPECT_EQ(some[1].name(), files[3].string());
  expect_weights(some[1], read(some[1], 64), {contents[3][1]});
}

TEST_F(Weights, ANameThatTwoFilesHoldIsRefused) {
  const auto one = write("one.safetensors", {{"a", "F32", {0}}, {"b", "F32", {0}}});
  const auto two = write("two.safetensors", {{"b", "F32", {0}}, {"c", "F32", {0}}});
  expect_error<Error>([&] { return open_weights({one, two}); }, {one.string(), two.string(), "'b'"});
  expect_error<Error>([&] { return open_weights({one, one}, std::vector<std::string>{"c"}); }, {"'a'"});
}

TEST_F(Weights, AnUnknownNameIsRefusedWithSimilarOnes) {
  const auto one = write("one.safetensors", {{"model.layers.0.weight", "F32", {0}}, {"head", "F32", {0}}});
  const auto two = write("two.safetensors", {{"model.layers.1.weight", "F32", {0}}});
  const auto open = [&](const std::string& name) {
    return open_weights({one, two}, std::vector<std::string>{"head", name});
  };
  expect_error<InvalidArgument>(
      [&] { return open("model.layer.1.weight"); },
      {"'model.layer.1.weight'", "'model.layers.1.weight', 'model.layers.0.weight'"});
  expect_error<InvalidArgument>([&] { return open("xyz"); }, {"'xyz'", "3 others"});
  expect_error<InvalidArgument>([&] { return open_weights({}); }, {"no file"});
}

TEST_F(Weights, ACutWhileItIsReadIsAnError) {
  std::vector<Weight> weights{{"first", "U8", {1000}}, {"second", "U8", {3000}}, {"third", "U8", {500}}};
  test::fill_randomly(weights, 4);
  const auto path = write("model.safetensors", weights);
  const auto size = std::filesystem::file_size(path);
  const WeightFile file(path);
  HostWorkers workers({.threads = 2, .on_start = {}});
  std::vector<std::byte> block(file.bytes());
  for (const std::size_t cut : {1u, 499u, 500u, 501u, 3000u, 3501u, 4499u, 4500u}) {
    SCOPED_TRACE(cut);
    std::filesystem::resize_file(path, size - cut);
    const auto place = 4500 - cut;
    const std::string name = place < 1000 ? "first" : place < 4000 ? "second" : "third";
    const auto end = size - 4500 + (place < 1000 ? 1000u : place < 4000 ? 4000u : 4500u);
    expect_error<Error>([&] { return file.read_all(workers, block), 0; },
                        {path.string(), "cut short", fmt::format("ends at byte {},", size - cut),
                         "'" + name + "'", fmt::format("end at byte {}.", end)});
  }
  // What is still there can be read.
  static_cast<void>(write("model.safetensors", weights));
  std::filesystem::resize_file(path, size - 501);
  std::vector<std::byte> first(1000);
  file.read(file.tensors()[0].offset, first);
  EXPECT_EQ(first, weights[0].data);
}

TEST_F(Weights, FilesThatLieAreRefused) {
  const auto data = test::random_bytes(24, 5);
  const auto refuses = [&](const std::string& header, const std::vector<std::string>& parts,
                           std::size_t length = 0) {
    SCOPED_TRACE(header);
    const auto path = directory_.write("x.safetensors", test::safetensors(header, data, length));
    auto expected = parts;
    expected.push_back(path.string());
    expected.emplace_back("byte ");
    expect_error<Error>([&] { return WeightFile(path); }, expected);
  };
  const auto tensor = [](const char* name, const char* type, const char* shape, const char* offsets) {
    return fmt::format(R"("{}": {{"dtype": "{}", "shape": {}, "data_offsets": {}}})", name, type, shape,
                       offsets);
  };
  const auto header = [](const std::string& a, const std::string& b) { return "{" + a + ", " + b + "}"; };
  const std::string a = tensor("a", "U8", "[12]", "[0, 12]");
  refuses(header(a, tensor("b", "U8", "[13]", "[11, 24]")), {"overlap", "'b'"});
  refuses(header(a, tensor("b", "U8", "[11]", "[13, 24]")), {"gap", "'b'"});
  refuses(header(a, tensor("b", "U8", "[0]", "[5, 5]")), {"overlap", "'b'"});
  refuses(header(a, tensor("b", "U8", "[13]", "[12, 25]")), {"(b)", "end of the file"});
  refuses(header(a, tensor("b", "U8", "[12]", "[9223372036854775807, 9223372036854775819]")), {"(b)"});
  refuses(header(a, tensor("a", "U8", "[12]", "[12, 24]")), {"'a' twice"});
  refuses(header(a, tensor("b", "F5", "[24]", "[12, 25]")), {"(b)", "end of the file"});
  refuses(header(a, tensor("b", "F5", "[24]", "[24, 12]")), {"(b)", "'data_offsets'"});
  refuses(header(a, tensor("b", "F5", "[24]", "[12, 20]")), {"4 bytes more"});
  refuses(header(a, tensor("b", "F4", "[25]", "[12, 24]")), {"(b)", "fill whole bytes", "100 bits"});
  refuses(header(a, tensor("b", "F4", "[22]", "[12, 24]")), {"(b)", "11 bytes apart"});
  refuses(header(a, tensor("b", "C64", "[2]", "[12, 24]")), {"(b)", "16 bytes apart"});
  refuses(header(a, R"("b": {"dtype": "U8", "data_offsets": [12, 24]})"), {"(b)", "no 'shape'"});
  refuses(header(a, R"("b": {"dtype": "U8", "shape": [12]})"), {"(b)", "no 'data_offsets'"});
  refuses(header(a, R"("b": {"dtype": "U8", "shape": [12], "shape": [12], "data_offsets": [12, 24]})"),
          {"'shape' twice"});
  refuses(header(a, R"("b": {"dtype": 8, "shape": [12], "data_offsets": [12, 24]})"), {"(b)", "\"F32\""});
  refuses(header(a, R"("b": {"dtype": "U8", "shape": [12.5], "data_offsets": [12, 24]})"),
          {"(b)", "'shape'"});
  refuses(header(a, R"("b": {"dtype": "U8", "shape": {}, "data_offsets": [12, 24]})"), {"(b)", "'shape'"});
  refuses(header(a, R"("__metadata__": {"a": {}})"), {"texts by name under '__metadata__'"});
  refuses(header(a, R"("__metadata__": null, "__metadata__": {})"), {"'__metadata__' twice"});
  refuses("{" + a + "}" + std::string(1, '\0'), {"a byte of value 0"});
  refuses("\xEF\xBB\xBF{" + a + "}", {"a byte order mark"});
  refuses(header(a, tensor("b", "F32", "[4]", "[12, 24]")), {"(b)", "16 bytes apart"});
  refuses(header(a, tensor("b", "U8", "[0, 4611686018427387904, 4]", "[12, 12]")), {"(b)", "address space"});
  refuses("{" + a + "}", {"12 bytes more"});
  refuses("{" + a + "}", {"a length of 9223372036854775808"}, std::size_t{1} << 63);
  refuses("{}", {"24 bytes more"});
}

TEST_F(Weights, TypesThatAreNotKnownAreLeftOut) {
  const auto bytes = [](std::size_t count, std::uint64_t seed) { return test::random_bytes(count, seed); };
  const auto path = directory_.write(
      "x.safetensors", test::safetensors(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                            "b": {"dtype": "F5", "shape": [24], "data_offsets": [4, 16]},
                            "c": {"dtype": "D64", "shape": [], "data_offsets": [16, 24]},
                            "d": {"dtype": "U8", "shape": [6], "data_offsets": [24, 30]}})",
                                         bytes(30, 7)));
  expect_error<Error>([&] { return open_weights({path}); }, {path.string(), "(b)", "F5", "does not move"});
  expect_error<Error>([&] { return open_weights({path}, std::vector<std::string>{"a", "c"}); },
                      {path.string(), "(c)", "D64"});
  EXPECT_EQ(read_weight_headers({path}).front().tensors().size(), 4u);
  const auto files = open_weights({path}, std::vector<std::string>{"a", "d"});
  ASSERT_EQ(files.size(), 1u);
  std::vector<std::byte> block(files[0].bytes());
  files[0].read(0, block);
  const auto expected = bytes(30, 7);
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 4, block.begin()));
  EXPECT_TRUE(std::equal(expected.begin() + 24, expected.end(), block.begin() + WeightFile::kAlignment));
}

TEST_F(Weights, TextsAndOtherKeysOfAFile) {
  const auto path =
      directory_.write("x.safetensors", test::safetensors(R"({"__metadata__": {"format": "pt", "ä": ""},
                            "a": {"made": {"by": [1, null]}, "dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})",
                                                          test::random_bytes(2, 8)));
  const WeightFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"ä", ""}}));
  EXPECT_EQ(file.select({}).metadata(), file.metadata());
  EXPECT_EQ(file.tensors().front().shape, Shape{2});
}

TEST_F(Weights, RowsAlone) {
  const std::vector<Weight> weights = [] {
    std::vector<Weight> made{
        {"a", "F32", {10, 3}}, {"b", "U8", {4}}, {"none", "F32", {0, 3}}, {"half", "F4", {2, 3}}};
    test::fill_randomly(made, 9);
    return made;
  }();
  const std::vector<std::filesystem::path> files{write("rows.safetensors", weights)};
  const auto load = [&](const WeightRows& rows) {
    return open_weights(files, std::vector<std::string>{"a", "b"}, {{"a", rows}}).front();
  };
  const auto expect_rows = [&](const WeightRows& rows, std::size_t begin, std::size_t end) {
    const auto bytes = std::span(weights[0].data).subspan(12 * begin, 12 * (end - begin));
    const WeightFile file = load(rows);
    expect_weights(file, read(file, 7),
                   {{"a", "F32", {end - begin, 3}, {bytes.begin(), bytes.end()}}, weights[1]});
  };
  expect_rows({2, 5}, 2, 5);
  expect_rows({}, 0, 10);
  expect_rows({.begin = -3, .end = {}}, 7, 10);
  expect_rows({.begin = {}, .end = -8}, 0, 2);
  expect_rows({-100, 100}, 0, 10);
  expect_rows({6, 6}, 6, 6);
  expect_rows({8, 2}, 8, 8);
  const auto none = open_weights(files, std::vector<std::string>{"none"}, {{"none", {0, 5}}});
  EXPECT_EQ(none.front().tensors().front().shape, (Shape{0, 3}));
  const auto scalar = write("scalar.safetensors", {{"s", "U8", {}, std::vector<std::byte>(1)}});
  expect_error<InvalidArgument>(
      [&] { return open_weights({scalar}, std::vector<std::string>{"s"}, {{"s", {0, 1}}}); },
      {"'s'", "scalar", "no rows"});
  expect_error<InvalidArgument>(
      [&] { return open_weights(files, std::vector<std::string>{"half"}, {{"half", {0, 1}}}); },
      {"'half'", "2x3", "no rows of whole bytes"});
}

TEST_F(Weights, AnIndexOrAFolderStandsForItsFiles) {
  const auto names_of = [&](const std::filesystem::path& path) {
    std::vector<std::string> names;
    for (const WeightFile& file : open_weights({path}))
      for (const WeightTensor& tensor : file.tensors()) names.push_back(tensor.name);
    return names;
  };
  const auto put = [&](const std::string& name, const std::string& text) {
    return directory_.write(name, test::bytes_of(text));
  };
  const std::filesystem::path folder = directory_.path();
  expect_error<FileError>([&] { return open_weights({folder}); }, {folder.string(), "no .safetensors file"});
  for (const std::string name : {"b", "a", "extra"}) {
    static_cast<void>(write(name + ".safetensors", {{name, "F32", {0}}}));
  }
  put(".hidden.safetensors", "");
  put("config.json", R"({"weights": 3})");
  EXPECT_EQ(names_of(folder), (std::vector<std::string>{"a", "b", "extra"}));
  const auto index =
      put("x.safetensors.index.json",
          R"({"weight_map": {"b": "b.safetensors", "a": "a.safetensors", "c": "a.safetensors"}})");
  EXPECT_EQ(names_of(index), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names_of(folder), (std::vector<std::string>{"a", "b"}));
  put("y.safetensors.index.json", R"({"weight_map": {"b": "b.safetensors"}})");
  EXPECT_EQ(names_of(folder), (std::vector<std::string>{"a", "b", "extra"}));
  put("model.safetensors.index.json", R"({"weight_map": {"b": "b.safetensors"}})");
  EXPECT_EQ(names_of(folder), (std::vector<std::string>{"b"}));
  for (const char* text :
       {"{", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": {"a": 3}})", R"({"weight_map": "a"})"}) {
    const auto bad = put("bad.json", text);
    expect_error<Error>([&] { return open_weights({bad}); }, {bad.string(), "'weight_map'"});
  }
  const auto lost = put("lost.json", R"({"weight_map": {"a": "lost.safetensors"}})");
  expect_error<FileError>([&] { return open_weights({lost}); }, {"lost.safetensors cannot be opened"});
}

TEST_F(Weights, FilesOfAnotherKindAreNamed) {
  const std::pair<std::string, const char*> kinds[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "`git lfs pull`"},
      {"<!DOCTYPE html><html></html>", "HTML"},
      {R"({"metadata": {}})", "a text in JSON"},
      {std::string("PK\x03\x04\x14\0\0\0\0\0", 10), "torch.load"},
      {"\x80\x02}q\1X\2aa", "a pickle"},
      {std::string("\x80\x04\x95\x10\0\0\0\0\0\0\0", 11), "a pickle"},
      {std::string("GGUF\3\0\0\0\1", 9), "llama.cpp"},
      {"", "the end of the file"},
  };
  for (const auto& [text, expected] : kinds) {
    SCOPED_TRACE(text);
    const auto path = directory_.write("x.safetensors", test::bytes_of(text));
    expect_error<Error>([&] { return WeightFile(path); }, {path.string(), "byte 0", expected});
  }
}

TEST_F(Weights, ADatasetOfThemIsRefused) {
  const auto refuses = [&](const std::vector<Weight>& weights, const std::vector<std::string>& parts) {
    const auto path = write("x.safetensors", weights);
    expect_error<Error>([&] { return read_safetensors(path); }, parts);
  };
  refuses({}, {"at least one tensor"});
  refuses({{"s", "F32", {}, std::vector<std::byte>(4)}}, {"(s)", "a scalar"});
  refuses({{"z", "F32", {0, 3}}}, {"(z)", "zero samples"});
  refuses({{"z", "F32", {3, 0}}}, {"(z)", "at least one byte"});
  refuses({{"q", "F8_E5M2", {1}, std::vector<std::byte>(1)}}, {"(q)", "F8_E5M2", "does not move"});
}

}  // namespace
}  // namespace penstock
