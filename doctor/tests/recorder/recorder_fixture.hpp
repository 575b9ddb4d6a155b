#pragma once

#include "cli/command.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace penstock::testing {

/// The whole way: the command runs a program, whose driver is a fake one that loads the recorder, which finds
/// a CUPTI that makes up what a GPU does.
class RecorderTest : public CommandTest {
 protected:
  RecorderTest() {
    command_.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "PROGRAM=" PENSTOCK_RECORDER_PROGRAM,
                            "PENSTOCK_LIBCUPTI=" PENSTOCK_FAKE_CUPTI};
  }

  /// Runs the test's program with `words`, under the doctor with `options`.
  [[nodiscard]] CommandResult run(const std::vector<std::string>& words,
                                  const std::vector<std::string>& options = {}) const {
    return command_.run(joined({{"doctor"}, options, {"--", PENSTOCK_RECORDER_PROGRAM}, words}));
  }
  /// The same of a shell's script, in which $PROGRAM is that program.
  [[nodiscard]] CommandResult run_script(const std::string& script,
                                         const std::vector<std::string>& options = {}) const {
    return command_.run(joined({{"doctor"}, options, {"--", "sh", "-c", script}}));
  }
  /// What `--json` has written to path("report.json").
  [[nodiscard]] nlohmann::json read_report() const {
    return nlohmann::json::parse(read("report.json"), nullptr, false);
  }
};

}  // namespace penstock::testing
