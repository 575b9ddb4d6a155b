#include "core/shared/replace_file.hpp"

#include "support/fork.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplaceFile : public ::testing::Test {
 protected:
  static void write(const fs::path& file, const std::string& text, const std::atomic<bool>* stop = nullptr) {
    replace_file(file, std::as_bytes(std::span(text)), stop);
  }
  static std::string read(const fs::path& file) {
    std::string text(fs::file_size(file), '\0');
    std::ifstream(file, std::ios::binary).read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }
  [[nodiscard]] auto files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  const test::TempDirectory directory_;
  const fs::path folder_ = directory_.path();
  const fs::path file_ = folder_ / "weights";
};

TEST_F(ReplaceFile, WritesAllBytes) {
  std::string long_text = "0";
  while (long_text.size() < 20'000'000) long_text += long_text + std::to_string(long_text.size());
  for (const std::string& text : {std::string("first"), std::string(), long_text}) {
    write(file_, text);
    EXPECT_TRUE(read(file_) == text);
    EXPECT_EQ(files(), 1);
  }
}

TEST_F(ReplaceFile, KeepsPermissionsAndLinks) {
  write(file_, "old");
  fs::permissions(file_, fs::perms{0640});
  const fs::path link = folder_ / "link";
  fs::create_symlink(file_, link);
  write(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read(file_), "new");
  EXPECT_EQ(fs::status(file_).permissions(), fs::perms{0640});
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling");
  write(folder_ / "dangling", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));
  EXPECT_EQ(read(folder_ / "nowhere"), "new");
  fs::create_directory(folder_ / "sub");
  fs::create_symlink("../later", folder_ / "sub" / "second");
  fs::create_symlink("sub/second", folder_ / "first");
  write(folder_ / "first", "chain");
  EXPECT_TRUE(fs::is_symlink(folder_ / "sub" / "second"));
  EXPECT_EQ(read(folder_ / "later"), "chain");
}

TEST_F(ReplaceFile, TakesTheLongestName) {
  const fs::path file = folder_ / std::string(255, 'n');
  write(file, "text");
  EXPECT_EQ(read(file), "text");
  EXPECT_EQ(files(), 1);
  try {
    write(folder_ / std::string(256, 'n'), "text");
    ADD_FAILURE() << "no name has 256 bytes";
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ENAMETOOLONG);
  }
}

TEST_F(ReplaceFile, RefusesALinkThatLeadsToItself) {
  fs::create_symlink("itself", folder_ / "itself");
  try {
    write(folder_ / "itself", "text");
    ADD_FAILURE() << "there is no such place";
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ELOOP);
  }
}

TEST_F(ReplaceFile, LeavesNothingIfTheProcessIsKilled) {
  write(file_, "old");
  const int nameless = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0600);
  const int left = nameless < 0 ? 1 : 0;  // a file system that cannot do that keeps a .tmp
  ::close(nameless);
  testing::Child child([&] {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    const rlimit little{.rlim_cur = 100, .rlim_max = 100};
    ::setrlimit(RLIMIT_CORE, &none);
    ::setrlimit(RLIMIT_FSIZE, &little);
    write(file_, std::string(1000, 'x'));
    return true;
  });
  EXPECT_FALSE(child.end());
  EXPECT_EQ(read(file_), "old");
  EXPECT_EQ(files(), 1 + left);
  write(file_, "new");
  EXPECT_EQ(read(file_), "new");
}

TEST_F(ReplaceFile, TakesNamesOfTheWorkingFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  write("here", "text");
  fs::current_path(before);
  EXPECT_EQ(read(folder_ / "here"), "text");
}

TEST_F(ReplaceFile, LeavesWhatIsNotARegularFile) {
  fs::create_directory(file_);
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& file : {file_, pipe}) {
    try {
      write(file, "text");
      ADD_FAILURE() << file << " was replaced";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(file.string()), HasSubstr("not a regular file")));
    }
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(files(), 2);
}

TEST_F(ReplaceFile, NamesTheFileAndTheReason) {
  try {
    write(folder_ / "none" / "weights", "text");
    ADD_FAILURE() << "there is no such folder";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("none/weights"), HasSubstr("No such file or directory")));
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_EQ(error.file(), (folder_ / "none" / "weights").string());
  }
}

TEST_F(ReplaceFile, LeavesTheOldOneIfTheDiskIsFull) {
  write(file_, "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{.rlim_cur = 100, .rlim_max = before.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  std::string message;
  try {
    write(file_, std::string(1000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr(file_.string()), HasSubstr("File too large")));
  EXPECT_EQ(read(file_), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(ReplaceFile, LeavesTheOldOneIfItIsStopped) {
  write(file_, "old");
  const std::atomic<bool> stop{true};
  for (const std::string& text : {std::string(), std::string("new")}) {
    EXPECT_THROW(write(file_, text, &stop), Closed);
  }
  EXPECT_EQ(read(file_), "old");
  EXPECT_EQ(files(), 1);
  const std::atomic<bool> go_on{false};
  write(file_, "new", &go_on);
  EXPECT_EQ(read(file_), "new");
}

TEST_F(ReplaceFile, IsWholeForReadersMeanwhile) {
  write(file_, "aaaa");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) write(file_, std::string(4, static_cast<char>('a' + i % 20)));
  });
  for (int i = 0; i < 200; ++i) {
    const std::string text = read(file_);
    EXPECT_EQ(text, std::string(4, text.empty() ? '?' : text[0]));
  }
  stop = true;
  writer.join();
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace penstock
