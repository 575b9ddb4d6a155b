#include "cli/command.hpp"
#include "cli/datasets.hpp"
#include "data/cold_file.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>
#include <string>

namespace penstock {
namespace {

using nlohmann::json;
using testing::CommandResult;
using ::testing::MatchesRegex;

class Load : public testing::CommandTest {
 protected:
  /// Two files of 100,000 and 5 bytes.
  void write_model() const {
    testing::write_safetensors(command_.home() / "one.safetensors",
                               R"({"w":{"dtype":"F32","shape":[250,100],"data_offsets":[0,100000]},)"
                               R"("s":{"dtype":"F32","shape":[0],"data_offsets":[100000,100000]}})",
                               std::string(100'000, 'x'));
    testing::write_safetensors(command_.home() / "two.safetensors",
                               R"({"b":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[0,5]}})", "abcde");
  }
  [[nodiscard]] CommandResult load(const std::string& words) const {
    return command_.run_script("\"$PENSTOCK\" load " + words);
  }
  void expect_complaint(const std::string& words, int status, const std::string& part) const {
    testing::expect_complaint(load(words), status, part);
  }
};

TEST_F(Load, SaysWhatWasLoadedAndWhatLimitedIt) {
  write_model();
  const CommandResult result = load("one.safetensors two.safetensors --device host");
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("one.safetensors: 2 tensors, 97.7 KiB\n"));
  EXPECT_THAT(result.output, HasSubstr("two.safetensors: 1 tensor, 5 B\n"));
  EXPECT_THAT(result.output, HasSubstr("\n3 tensors, 97.7 KiB to host in "));
  EXPECT_THAT(result.output, HasSubstr(" GB/s\nlimited by "));
  EXPECT_THAT(result.output, HasSubstr("read 97.7 KiB from memory (the page cache)\n"));
  EXPECT_THAT(result.output, HasSubstr("`penstock link --device host` measures it"));
}

TEST_F(Load, JsonHasEveryTensor) {
  write_model();
  const CommandResult result = load("one.safetensors two.safetensors --device host --json -");
  ASSERT_EQ(result.status, 0) << result.errors;
  const json told = json::parse(result.output);
  EXPECT_EQ(told["device"], "host");
  EXPECT_EQ(told["tensors"], 3);
  EXPECT_EQ(told["bytes"], 100'005);
  EXPECT_GT(told["seconds"], 0);
  EXPECT_DOUBLE_EQ(told["bytes_per_second"], 100'005 / told["seconds"].get<double>());
  EXPECT_GE(told["threads"], 1);
  EXPECT_EQ(told["link_measured"], false);
  for (const char* share : {"reading_share", "link_share"}) {
    EXPECT_GE(told[share], 0);
    EXPECT_LE(told[share], 1);
  }
  EXPECT_EQ(told["limited_by"], told["link_share"] > told["reading_share"] ? "link" : "reading");
  EXPECT_EQ(told["read"], (json{{"cached", 100'005}, {"direct", 0}, {"buffered", 0}}));
  const json first = told["files"][0];
  EXPECT_EQ(first["file"], "one.safetensors");
  EXPECT_EQ(first["bytes"], 100'000);
  EXPECT_EQ(first["tensors"].size(), 2u);
  EXPECT_EQ(first["tensors"][0],
            (json{{"name", "w"}, {"type", "F32"}, {"shape", {250, 100}}, {"bytes", 100'000}}));
  EXPECT_EQ(told["files"][1]["tensors"][0]["type"], "F8_E4M3");
}

TEST_F(Load, SaysThatTheDiskLimitedIt) {
  const auto file = command_.home() / "large.safetensors";
  constexpr std::size_t kBytes = 20'000'000;
  testing::write_safetensors(file, R"({"w":{"dtype":"U8","shape":[20000000],"data_offsets":[0,20000000]}})",
                             std::string(kBytes, 'x'));
  PENSTOCK_MAKE_COLD(file);
  const json told = json::parse(load("large.safetensors --device host --json -").output);
  EXPECT_EQ(told["read"]["direct"].get<std::size_t>() + told["read"]["buffered"].get<std::size_t>(), kBytes);
  EXPECT_EQ(told["limited_by"], told["link_share"] > told["reading_share"] ? "link" : "disk");
  ASSERT_TRUE(test::make_cold(file));
  const CommandResult result = load("large.safetensors --device host");
  EXPECT_THAT(result.output, HasSubstr("read 19.1 MiB from the disk, "));
}

TEST_F(Load, FilesWithoutBytesLoad) {
  testing::write_safetensors(command_.home() / "none.safetensors", "{}", "");
  const CommandResult result = load("none.safetensors --device host");
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("0 tensors, 0 B to host"));
}

TEST_F(Load, UsesTheLinksProfile) {
  write_model();
  const CommandResult measured = command_.run_script(
      "\"$PENSTOCK\" link --device host --quick --max-bytes 64KiB --repetitions 2 --profile p.json");
  ASSERT_EQ(measured.status, 0) << measured.errors;
  EXPECT_EQ(
      json::parse(load("one.safetensors --device host --profile p.json --json -").output)["link_measured"],
      true);
}

TEST_F(Load, RefusesWhatItCannotLoad) {
  write_model();
  expect_complaint("", 2, "FILES");
  expect_complaint("missing.safetensors --device host", 1, "missing.safetensors cannot be opened");
  expect_complaint("one.safetensors one.safetensors --device host", 1, "both hold a tensor 'w'");
  expect_complaint("one.safetensors --device nowhere", 1, "nowhere");
  testing::write_safetensors(command_.home() / "bad.safetensors",
                             R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abc");
  expect_complaint("bad.safetensors --device host", 1, "bad.safetensors (x), byte ");
  expect_complaint("one.safetensors --device host:memory=64KiB", 1, "host");
}

}  // namespace
}  // namespace penstock
