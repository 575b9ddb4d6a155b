#pragma once

#include "cli/command.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::testing {

/// True if lines of compiled code can be found.
inline bool has_addr2line() {
  return std::filesystem::exists("/usr/bin/addr2line") || std::filesystem::exists("/usr/bin/llvm-addr2line");
}

/// The whole way: the command runs a program, whose driver is a fake one that loads the recorder, which finds
/// a CUPTI that makes up what a GPU does.
class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest() {
    command_.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "PENSTOCK_LIBCUPTI=" PENSTOCK_FAKE_CUPTI};
  }

  /// Runs the test's program with `words`, under the doctor with `options`.
  [[nodiscard]] CommandResult run(const std::vector<std::string>& words,
                                  const std::vector<std::string>& options = {}) const {
    std::vector<std::string> all{"doctor"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"--", PENSTOCK_RECORDER_PROGRAM});
    all.insert(all.end(), words.begin(), words.end());
    return command_.run(all);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (command_.home() / name).string(); }
  [[nodiscard]] std::string read(const std::string& name) const { return read_text(command_.home() / name); }
  /// What `--json` has written to path("report.json").
  [[nodiscard]] nlohmann::json read_report() const {
    return nlohmann::json::parse(read("report.json"), nullptr, false);
  }

  Command command_;
};

}  // namespace penstock::testing
