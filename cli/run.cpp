#include "cli/shared/output.hpp"
#include "cli/shared/run_program.hpp"
#include "commands.hpp"
#include "page_texts.hpp"
#include "run_report.hpp"

#include <penstock/core/error.hpp>

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

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

/// The folder of a program that is running, or of one of its processes.
fs::path figures_of(int process) {
  std::ifstream in(fmt::format("/proc/{}/environ", process), std::ios::binary);
  if (!in) throw Error(fmt::format("process {} is not there, or is not yours", process));
  const std::string name = std::string(run::kFiguresVariable) + "=";
  for (std::string variable; std::getline(in, variable, '\0');) {
    if (variable.starts_with(name)) return variable.substr(name.size());
  }
  throw Error(
      fmt::format("process {} was not started by penstock run; name the program that it runs", process));
}

/// "NAME=value", with the value that the environment has for a list of paths.
std::string joined(const char* name, const std::string& value, bool in_front) {
  const char* const others = std::getenv(name);
  if (others == nullptr || *others == 0) return fmt::format("{}={}", name, value);
  return in_front ? fmt::format("{}={}:{}", name, value, others)
                  : fmt::format("{}={}:{}", name, others, value);
}

/// Of the program. What is preloaded already comes first; so does the folder in which Python finds `--feed`.
std::vector<std::string> variables(const fs::path& library, const fs::path& folder, bool feeds) {
  std::vector<std::string> all = {joined("LD_PRELOAD", library.string(), false),
                                  fmt::format("{}={}", run::kFiguresVariable, folder.string())};
  // PyTorch then asks for huge pages, which the kernel makes in a third of the time.
  constexpr const char* kHugePages = "THP_MEM_ALLOC_ENABLE";
  if (std::getenv(kHugePages) == nullptr) all.push_back(fmt::format("{}=1", kHugePages));
  if (feeds) {
    std::ofstream(folder / "sitecustomize.py") << kSitecustomizeProgram;
    all.push_back(joined("PYTHONPATH", folder.string(), true));
  }
  return all;
}

/// Of a program for the machine that this command was built for. False if it has no loader.
bool names_loader(std::ifstream& in, const Elf64_Ehdr& header) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    in.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof part));
    if (in.read(reinterpret_cast<char*>(&part), sizeof part) && part.p_type == PT_INTERP) return true;
  }
  return false;
}

/// True if it runs with rights that its user does not have.
bool changes_rights(const fs::path& program) {
  struct stat facts{};
  if (::stat(program.c_str(), &facts) != 0) return false;
  return ((facts.st_mode & S_ISUID) != 0 && facts.st_uid != ::getuid()) ||
         ((facts.st_mode & S_ISGID) != 0 && facts.st_gid != ::getgid());
}

[[noreturn]] void refuse(const fs::path& program, std::string_view why) {
  throw Error(
      fmt::format("{} {}, so its copies cannot be taken; run it without penstock", program.string(), why));
}

/// Throws Error, which says why, if the system's loader would not preload a library of ours into `program`,
/// or into the interpreter of its first line.
void require_preloadable(const fs::path& program) {
  std::ifstream in(program, std::ios::binary);
  Elf64_Ehdr header{};
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  if (std::memcmp(&header, "#!", 2) == 0) {
    std::string line, interpreter;
    in.clear();
    in.seekg(2);
    std::getline(in, line);
    std::istringstream(line) >> interpreter;
    if (!interpreter.empty() && interpreter != program) require_preloadable(interpreter);
    return;
  }
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
  if (header.e_ident[EI_CLASS] == ELFCLASS32) refuse(program, "is a program of 32 bits");
  if (!names_loader(in, header)) refuse(program, "is statically linked");
  if (changes_rights(program)) refuse(program, "runs with the rights of its owner (setuid or setgid)");
}

}  // namespace

int run_run(const RunOptions& options) {
  const fs::path library = find_own_library(kLibrary);
  if (options.library) {
    print(library.string() + "\n");
    return 0;
  }
  if (options.report != 0) {
    if (!options.json.empty() || options.feed || !options.command.empty())
      throw UsageError("--report is about a program that runs already; leave out all else");
    say(RunReport(figures_of(options.report), false).text());
    return 0;
  }
  if (options.command.empty())
    throw UsageError("there is no program to run; write penstock run -- python train.py");
  OutputFile json("--json", options.json);
  if (const auto program = find_program(options.command[0])) require_preloadable(*program);
  const FiguresFolder folder;
  ProgramStart start{.variables = variables(library, folder.path(), options.feed),
                     .quiet = json.is_standard_output()};
  const int status = wait_for_program(
      start_program(options.command, std::move(start),
                    {.missing = fmt::format("there is no program '{}' in the PATH", options.command[0])}));
  const RunReport report(folder.path(), options.feed);
  say(report.text());
  if (json) json.write(report.json(options.command, status));
  return status;
}

}  // namespace penstock::cli
