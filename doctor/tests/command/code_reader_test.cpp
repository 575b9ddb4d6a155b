#include "doctor/command/code_reader.hpp"

#include "support/matchers.hpp"
#include "support/temp_directory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::Field;

auto place(const std::string& function, const std::string& file, std::uint32_t line) {
  return AllOf(Field(&CodePlace::function, function), Field(&CodePlace::file, file),
               Field(&CodePlace::line, line));
}

TEST(CodeReader, ReadsFunctionsThatWereInlined) {
  const auto places = parse_lines(
      "0x00000000000016b2\nstep(bool)\n/src/a b.cpp:34\nact\n/src/a b.cpp:55 (discriminator 2)\nmain\n"
      "/src/a b.cpp:90\n"
      "0x1353\nwork() [clone .isra.0]\n??:0\n"
      "0x1354\n??\n??:?\n");
  ASSERT_THAT(places, SizeIs(3));
  EXPECT_THAT(places[0], ElementsAre(place("step(bool)", "/src/a b.cpp", 34),
                                     place("act", "/src/a b.cpp", 55), place("main", "/src/a b.cpp", 90)));
  EXPECT_THAT(places[1], ElementsAre(place("work()", "", 0)));
  EXPECT_THAT(places[2], IsEmpty());
}

TEST(CodeReader, DoubtsAnInnermostNameThatIsTheOutermosts) {
  const auto places =
      parse_lines("0x1\nmain\na.cpp:34\nact\na.cpp:55\nmain\na.cpp:90\n0x2\nmain\na.cpp:91\n");
  ASSERT_THAT(places, SizeIs(2));
  EXPECT_THAT(places[0],
              ElementsAre(place("", "a.cpp", 34), place("act", "a.cpp", 55), place("main", "a.cpp", 90)));
  EXPECT_THAT(places[1], ElementsAre(place("main", "a.cpp", 91)));
}

TEST(CodeReader, ReadsAnyText) {
  EXPECT_THAT(parse_lines(""), IsEmpty());
  EXPECT_THAT(parse_lines("main\na.cpp:3\n"), IsEmpty());
  EXPECT_THAT(parse_lines("0x1\nmain\n"), ElementsAre(IsEmpty()));
  EXPECT_THAT(parse_lines("0x1\nmain\na.cpp\n"), ElementsAre(ElementsAre(place("main", "", 0))));
  EXPECT_THAT(parse_lines("0x1\nmain\na.cpp:x3\n"), ElementsAre(ElementsAre(place("main", "", 0))));
}

/// Programs of a PATH that has nothing else.
class CodeReaderPrograms : public ::testing::Test {
 protected:
  CodeReaderPrograms() { ::setenv("PATH", folder_.path().c_str(), 1); }
  ~CodeReaderPrograms() override { ::setenv("PATH", before_.c_str(), 1); }

  void add(const std::string& name, const std::string& script) {
    const fs::path file = folder_.path() / name;
    std::ofstream(file) << "#!/bin/sh\n" << script;
    fs::permissions(file, fs::perms::owner_all);
  }

  std::string before_ = std::getenv("PATH");
  test::TempDirectory folder_;
};

TEST_F(CodeReaderPrograms, AreNotNeeded) {
  EXPECT_THAT(LineReader()("/program", {{1, 2}}), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST_F(CodeReaderPrograms, GetTheFileAndTheAddresses) {
  add("addr2line",
      "echo 0x1; echo \"$*\"; echo a.cpp:3; echo 0x2; echo \"$DEBUGINFOD_URLS.\"; echo a.cpp:4\n");
  ::setenv("DEBUGINFOD_URLS", "https://nowhere.invalid", 1);
  const auto places = LineReader()("/the program", {{16, 255}});
  ::unsetenv("DEBUGINFOD_URLS");
  ASSERT_THAT(places, SizeIs(2));
  EXPECT_THAT(places[0], ElementsAre(place("-a -f -C -i -e /the program 0x10 0xff", "a.cpp", 3)));
  EXPECT_THAT(places[1], ElementsAre(place(".", "a.cpp", 4))) << "no server is asked";
}

TEST_F(CodeReaderPrograms, MayTakeNoLongerThanTheReaderHasPatience) {
  add("llvm-addr2line", "echo 0x1; echo main; echo a.cpp:3; exec /bin/sleep 1000\n");
  LineReader reader(std::chrono::milliseconds(500));
  EXPECT_THAT(reader("/program", {{1, 2}}), SizeIs(2));
  EXPECT_THAT(reader("/other", {{1}}), ElementsAre(IsEmpty())) << "no patience is left";
}

TEST_F(CodeReaderPrograms, OnlyTheTimeOfQuestionsCounts) {
  add("addr2line", "echo 0x1; echo main; echo a.cpp:3\n");
  LineReader reader(std::chrono::seconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  EXPECT_THAT(reader("/program", {{1}}), ElementsAre(ElementsAre(place("main", "a.cpp", 3))));
}

TEST_F(CodeReaderPrograms, AreAskedAboutAnAddressOnce) {
  add("addr2line", "for last; do :; done; echo $last; echo \"$*\"; echo a.cpp:3\n");
  LineReader reader;
  const auto first = reader("/program", {{1}});
  EXPECT_THAT(first, ElementsAre(ElementsAre(place("-a -f -C -i -e /program 0x1", "a.cpp", 3))));
  const auto more = reader("/program", {{1, 2}});
  ASSERT_THAT(more, SizeIs(2));
  EXPECT_EQ(more[0][0].function, first[0][0].function);
  EXPECT_THAT(more[1], ElementsAre(place("-a -f -C -i -e /program 0x2", "a.cpp", 3))) << "and not 0x1 again";
  EXPECT_THAT(reader("/other", {{1}}),
              ElementsAre(ElementsAre(place("-a -f -C -i -e /other 0x1", "a.cpp", 3))));
}

}  // namespace
}  // namespace penstock::cli
