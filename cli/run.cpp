#include "cli/shared/output.hpp"
#include "cli/shared/run_program.hpp"
#include "commands.hpp"
#include "preload.hpp"
#include "run_report.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libpenstock_run.so";

/// The folder in which the program's processes keep their figures. It ends with this object.
class FiguresFolder {
 public:
  FiguresFolder() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "penstock-run-XXXXXX").string();
    if (error || ::mkdtemp(pattern.data()) == nullptr) {
      throw Error(fmt::format("there is no folder for temporary files ({}); name one with TMPDIR",
                              error ? error.message() : std::strerror(errno)));
    }
    path_ = pattern;
  }
  ~FiguresFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  FiguresFolder(const FiguresFolder&) = delete;
  FiguresFolder& operator=(const FiguresFolder&) = delete;

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

/// Behind what is preloaded already.
std::string preload_variable(const fs::path& library) {
  const char* const others = std::getenv("LD_PRELOAD");
  const bool alone = others == nullptr || *others == 0;
  return fmt::format("LD_PRELOAD={}{}{}", alone ? "" : others, alone ? "" : ":", library.string());
}

}  // namespace

int run_run(const RunOptions& options) {
  const fs::path library = find_own_library(kLibrary);
  if (options.library) {
    print(library.string() + "\n");
    return 0;
  }
  if (options.command.empty())
    throw UsageError("there is no program to run; write penstock run -- python train.py");
  OutputFile json("--json", options.json);
  if (const auto program = find_program(options.command[0])) require_preloadable(*program);
  const FiguresFolder folder;
  const int status = wait_for_program(
      start_program(options.command,
                    {.variables = {preload_variable(library), figures_variable(folder.path())},
                     .quiet = json.is_standard_output()},
                    {.missing = fmt::format("there is no program '{}' in the PATH", options.command[0])}));
  const RunReport report(folder.path());
  say(report.text());
  if (json) json.write(report.json(options.command, status));
  return status;
}

}  // namespace penstock::cli
