#include "cli/shared/output.hpp"

#include "cli/command.hpp"
#include "cli/datasets.hpp"
#include "cli/shared/signals.hpp"
#include "support/matchers.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <thread>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Command;
using testing::CommandResult;
using testing::expect_complaint;

/// A home with a dataset, and scripts that run in it.
class Output : public ::testing::Test {
 protected:
  Output() {
    testing::write_npy(home / "images.npy", "|u1", {40, 6},
                       testing::random_values<std::uint8_t>(240, 1, 255));
  }

  [[nodiscard]] CommandResult feed(const std::string& more) const {
    return command.run_script("\"$PENSTOCK\" feed images.npy --device host " + more);
  }
  [[nodiscard]] std::string text_of(const std::string& file) const { return testing::read_text(home / file); }
  /// The files in the home, with hidden ones.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(home)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  void put(const std::string& file, const std::string& text) const {
    std::ofstream(home / file, std::ios::binary) << text;
  }

  Command command;
  const fs::path home = command.home();
};

TEST_F(Output, AFeedOutlivesStandardError) {
  for (const char* errors : {"2>/dev/full", "2>&-", "2>&- >&-"}) {
    const bool account = std::string(errors).find(" >") == std::string::npos;
    const CommandResult result = feed(std::string("--epochs 3 --json out.json --report r.html ") + errors);
    EXPECT_EQ(result.status, account ? 0 : 1) << errors;
    if (!account) continue;
    EXPECT_EQ(json::parse(text_of("out.json"))["samples"], 120) << errors;
    EXPECT_THAT(text_of("r.html"), StartsWith("<!DOCTYPE html>"))
        << "no progress in a file that took its place";
    EXPECT_THAT(result.output, HasSubstr("The report is in r.html."));
  }
  EXPECT_EQ(command.run_script("\"$PENSTOCK\" nonsense 2>&-").status, 2);
  EXPECT_EQ(command.run_script("\"$PENSTOCK\" nonsense 2>/dev/full").status, 2);
}

TEST_F(Output, StandardOutputThatCannotBeWrittenIsAFailure) {
  for (const char* words : {"feed images.npy --device host", "feed images.npy --device host --json -", "info",
                            "info --json -", "--help", "feed --help", "--version"}) {
    const std::string start = std::string("\"$PENSTOCK\" ") + words;
    const CommandResult full = command.run_script(start + " >/dev/full");
    EXPECT_EQ(full.status, 1) << words;
    EXPECT_THAT(full.errors, HasSubstr("penstock: standard output cannot be written: No space left"))
        << words;
    const CommandResult closed = command.run_script(start + " >&-");
    EXPECT_EQ(closed.status, 1) << words;
    EXPECT_THAT(closed.errors, HasSubstr("penstock: standard output cannot be written: Bad file")) << words;
  }
}

TEST_F(Output, FilesAreWrittenThoughStandardOutputFailsAtTheEnd) {
  // The plan is printed before the feed, and fits. The account does not.
  const CommandResult result = command.run_script(
      "ulimit -f 1; \"$PENSTOCK\" feed images.npy --device host --epochs 200 --batch 40 "
      "--json /dev/stderr >small");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("\"samples\": 8000"),
                                   HasSubstr("standard output cannot be written: File too large")));
}

TEST_F(Output, NothingIsWrittenOntoAnInput) {
  const std::string images = text_of("images.npy");
  fs::create_symlink("images.npy", home / "link.npy");
  fs::create_hard_link(home / "images.npy", home / "hard.npy");
  put("profile.json", "{}");
  for (const char* file : {"images.npy", "./images.npy", "link.npy", "hard.npy"}) {
    for (const char* option : {"--report ", "--json "}) {
      expect_complaint(feed(std::string(option) + file), 2, "would overwrite the dataset");
    }
  }
  expect_complaint(feed("--json profile.json --profile profile.json"), 2, "would overwrite the link profile");
  const std::string start = "\"$PENSTOCK\" ";
  fs::create_directories(home / "set");
  fs::copy_file(home / "images.npy", home / "set" / "images.npy");
  expect_complaint(command.run_script(start + "feed set --device host --json set/images.npy"), 2,
                   "the dataset");
  expect_complaint(command.run_script(start + "link --device host --profile p.json --json ./p.json"), 2,
                   "the link profile");
  EXPECT_EQ(text_of("images.npy"), images);
  EXPECT_EQ(text_of("set/images.npy"), images);
  EXPECT_EQ(text_of("profile.json"), "{}");
  EXPECT_EQ(command.run_script(start + "feed set --device host --json set/out.json").status, 0)
      << "beside the dataset is no input";
}

TEST_F(Output, TwoOutputsAreTwoFiles) {
  expect_complaint(feed("--json out --report ./out"), 2, "would overwrite the file of --json");
  EXPECT_FALSE(fs::exists(home / "out"));
  EXPECT_EQ(feed("--json /dev/null --report /dev/null").status, 0);
}

TEST_F(Output, AFailedWriteLeavesWhatWasThere) {
  put("r.html", "the old one");
  const auto before = names();
  // A limit on the size of files acts like a full disk.
  const CommandResult result =
      command.run_script("ulimit -f 2; \"$PENSTOCK\" feed images.npy --device host --report r.html");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, HasSubstr("penstock: r.html cannot be written: File too large."));
  EXPECT_EQ(text_of("r.html"), "the old one");
  EXPECT_EQ(names(), before) << "nothing beside it";
}

TEST_F(Output, AFileIsReplacedInItsPlace) {
  put("real.html", "the old one");
  fs::permissions(home / "real.html", fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink("real.html", home / "r.html");
  ASSERT_EQ(feed("--report r.html --json out.json").status, 0);
  EXPECT_TRUE(fs::is_symlink(home / "r.html"));
  EXPECT_THAT(text_of("real.html"), StartsWith("<!DOCTYPE html>"));
  struct stat status{};
  ASSERT_EQ(::stat((home / "real.html").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
  EXPECT_EQ(json::parse(text_of("out.json"))["samples"], 40);
  EXPECT_EQ(names(), (std::vector<std::string>{"images.npy", "out.json", "r.html", "real.html"}));
}

TEST_F(Output, SpecialFilesAreWrittenAsTheyAre) {
  const CommandResult both = feed("--json /dev/stdout");
  EXPECT_EQ(both.status, 0) << both.errors;
  EXPECT_THAT(both.output, AllOf(HasSubstr("\"samples\": 40"), HasSubstr("\nepoch ")));
  EXPECT_EQ(feed("--json /dev/stdout >out").status, 0);
  EXPECT_THAT(text_of("out"), AllOf(HasSubstr("\"samples\": 40"), HasSubstr("\nepoch ")))
      << "the file that standard output already is";
  EXPECT_EQ(feed("--json /dev/null --report /dev/null").status, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const CommandResult piped = command.run_script(
      "mkfifo pipe; exec 3<>pipe; exec 4<pipe; exec 3>&-\n"
      "\"$PENSTOCK\" feed images.npy --device host --json pipe >/dev/null && cat <&4 >got");
  EXPECT_EQ(piped.status, 0) << piped.errors;
  EXPECT_EQ(json::parse(text_of("got"))["samples"], 40);
  EXPECT_TRUE(fs::is_fifo(home / "pipe"));
}

TEST_F(Output, AFifoWithoutAReaderIsRefusedBeforeTheWork) {
  ASSERT_EQ(::mkfifo((home / "pipe").c_str(), 0600), 0);
  for (const char* words : {"--json pipe", "--report pipe"}) {
    const CommandResult result = feed(words);
    expect_complaint(result, 1, "start its reader first");
    EXPECT_EQ(result.output, "");
  }
  expect_complaint(command.run_script("\"$PENSTOCK\" info --json pipe"), 1, "start its reader first");
}

TEST_F(Output, AReaderThatDoesNotReadCanBeInterrupted) {
  const fs::path pipe = home / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const cli::SignalWatch watch;
  cli::OutputFile file("--json", pipe.string());
  std::thread user([&] {
    pollfd polled{reader, POLLIN, 0};
    ::poll(&polled, 1, -1);  // writing has begun, and the pipe cannot hold all of it
    ::kill(::getpid(), SIGINT);
  });
  EXPECT_THROW(file.write(std::string(std::size_t{16} << 20, 'x')), cli::Interrupted);
  user.join();
  ::close(reader);
}

TEST_F(Output, AProfileIsStoredInARegularFile) {
  ASSERT_EQ(::mkfifo((home / "pipe").c_str(), 0600), 0);
  const CommandResult result = command.run_script("\"$PENSTOCK\" link --device host --profile pipe");
  expect_complaint(result, 1, "pipe is not a regular file");
  EXPECT_TRUE(fs::is_fifo(home / "pipe"));
}

TEST_F(Output, TextFromFilesIsShownAndNotObeyed) {
  const auto header = [&](const std::string& descr) {
    const std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (3,), }\n";
    return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(text.size()) + '\0' + text + "abc";
  };
  put("title.npy", header("\x1b]0;title\x07"));
  put("nul.npy", header(std::string("u\0u", 3)));
  put("binary.json", "{\"format\": \"\xff\xfe\x1b\"}");
  fs::copy_file(home / "images.npy", home / "red\x1b[31m.npy");
  const auto run = [&](const std::string& words) {
    return command.run_script("\"$PENSTOCK\" feed --device host " + words);
  };
  expect_complaint(run("title.npy"), 1, "found '\\x1b]0;title\\x07', which");
  expect_complaint(run("nul.npy"), 1, "found 'u\\x00u', which");
  const CommandResult named = run("red*.npy --report \"$(printf 'r\\033.html')\"");
  EXPECT_EQ(named.status, 0) << named.errors;
  EXPECT_THAT(named.output,
              AllOf(HasSubstr("red\\x1b[31m: uint8"), HasSubstr("The report is in r\\x1b.html.")));
  const CommandResult missing = run("\"$(printf '/no/\\033[2J')\"");
  expect_complaint(missing, 1, "no file or directory '/no/\\x1b[2J'");
  const CommandResult binary = run("images.npy --profile binary.json");
  EXPECT_THAT(binary.errors, HasSubstr("penstock: ignored: binary.json"));
  for (const CommandResult& result : {named, missing, binary, run("\"$(printf -- '--\\033[2J')\"")}) {
    for (const char raw : {'\x1b', '\x07', '\xff'}) {
      EXPECT_EQ(result.output.find(raw), std::string::npos) << result.output;
      EXPECT_EQ(result.errors.find(raw), std::string::npos) << result.errors;
    }
  }
}

}  // namespace
}  // namespace penstock
