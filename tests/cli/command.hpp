#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace penstock::testing {

struct CommandResult {
  int status = -1;  ///< exit status; 128 plus the signal's number if a signal ended it
  std::string output;
  std::string errors;
};

/// Runs `penstock` with a home of its own, and with only the given environment.
class Command {
 public:
  Command();
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  std::vector<std::string> environment;
  [[nodiscard]] const std::filesystem::path& home() const noexcept { return home_; }

  [[nodiscard]] CommandResult run(const std::vector<std::string>& arguments) const;
  /// Like run, but sends `signal` once standard error holds `text`.
  [[nodiscard]] CommandResult interrupt(const std::vector<std::string>& arguments, const std::string& text,
                                        int signal) const;
  /// Like run, but calls `act` once standard error holds `text`.
  [[nodiscard]] CommandResult run_and(const std::vector<std::string>& arguments, const std::string& text,
                                      const std::function<void()>& act) const;
  /// Runs a shell script in the home, with the command's path in $PENSTOCK.
  [[nodiscard]] CommandResult run_script(const std::string& script) const;
  /// Like run, with a terminal as standard error. `errors` holds its text.
  [[nodiscard]] CommandResult run_on_terminal(const std::vector<std::string>& arguments) const;

 private:
  std::filesystem::path home_;
};

/// These words one after the other.
[[nodiscard]] std::vector<std::string> joined(std::initializer_list<std::vector<std::string>> parts);

[[nodiscard]] std::string read_text(const std::filesystem::path& file);

/// How often the text has the words.
[[nodiscard]] std::size_t count_of(const std::string& text, const std::string& words);

/// The command ended with this status, printed nothing, and complained in one line that has the words.
void expect_complaint(const CommandResult& result, int status, const std::string& words);

/// A test of the command, with files in its home.
class CommandTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return (command_.home() / name).string(); }
  [[nodiscard]] std::string read(const std::string& name) const { return read_text(path(name)); }
  /// Makes its folders, too.
  void write(const std::string& name, const std::string& text) const;

  Command command_;
};

}  // namespace penstock::testing
