#include "doctor/command/recorded_program.hpp"

#include "cli/shared/run_program.hpp"
#include "core/shared/parse_number.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRecorder = "libpenstock_recorder.so";
constexpr const char* kInjection = "CUDA_INJECTION64_PATH";
constexpr const char* kRangeInjection = "NVTX_INJECTION64_PATH";
constexpr std::uint64_t kMostRecords = std::uint64_t{1} << 28;
constexpr std::uint64_t kLeastRoom = 3'700'000;  // for the text and the first records

fs::path find_recorder(const std::string& named) {
  if (named.empty()) return find_own_library(kRecorder);
  std::error_code error;
  if (!fs::is_regular_file(named, error))
    throw Error(fmt::format("PENSTOCK_RECORDER names '{}', and there is no such file", named));
  return fs::absolute(named);
}

/// The folder that temporary files go to.
fs::path temporary_folder() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (!error) return folder;
  for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const char* const named = std::getenv(name);
    if (named == nullptr) continue;
    throw Error(fmt::format(
        "{} names '{}', which is not a folder; correct it, or name a folder for the recordings with --record",
        name, named));
  }
  throw Error(
      fmt::format("there is no folder {}; name one for the recordings with --record", folder.string()));
}

/// The recorder cannot complain in the program if it has no room for its file.
void require_room(const fs::path& folder) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kLeastRoom) {
    throw Error(
        fmt::format("a recording takes {} at least, and files may have {} (ulimit -f); raise that limit",
                    format_bytes(kLeastRoom), format_bytes(limit.rlim_cur)));
  }
  struct statvfs disk{};
  if (::statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return;
  const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (room >= kLeastRoom) return;
  throw Error(fmt::format(
      "{} has room for {}, and a recording takes {} at least; name another folder with --record, or TMPDIR",
      folder.string(), format_bytes(room), format_bytes(kLeastRoom)));
}

/// A profiler around this command would lose the program; one that the user set up inside would lose it to
/// us.
void refuse_other_injection() {
  const char* const other = std::getenv(kInjection);
  if (other == nullptr || *other == 0) return;
  throw Error(fmt::format(
      "{} is set to {}: another profiler wants to record the program. Unset it, or do without the "
      "other one",
      kInjection, other));
}

/// The recorder takes its options from the environment, and cannot complain in the program. Throws
/// UsageError.
void check_recorder_variables() {
  const char* const records = std::getenv("PENSTOCK_RECORDS");
  if (records == nullptr) return;
  const auto number = parse_number<std::uint64_t>(records);
  if (!number || *number < 1 || *number > kMostRecords) {
    throw UsageError(fmt::format("PENSTOCK_RECORDS is '{}', and not a number of records from 1 to {}",
                                 records, kMostRecords));
  }
}

/// A script is run by its interpreter, which its name tells.
StartHints start_hints(const std::vector<std::string>& words) {
  StartHints hints{fmt::format("there is no program '{}' in the PATH", words[0])};
  for (const auto& [ending, interpreter] : {std::pair(".py", "python"), {".sh", "bash"}}) {
    if (!words[0].ends_with(ending)) continue;
    hints.instead = fmt::format("penstock doctor -- {} {}", interpreter, fmt::join(words, " "));
    hints.missing += "; write " + hints.instead;
  }
  return hints;
}

}  // namespace

RecordingFolder::RecordingFolder(const std::string& named) : stays_(!named.empty()) {
  if (stays_) {
    std::error_code error;
    fs::create_directories(named, error);
    if (!fs::is_directory(named, error))
      throw Error(fmt::format("--record: {} cannot be made a folder", named));
    if (!fs::is_empty(named, error))
      throw UsageError(fmt::format("--record: {} is not empty; name a new folder", named));
    path_ = fs::canonical(named);
    if (::access(path_.c_str(), W_OK) != 0)
      throw Error(fmt::format("--record: {} cannot be written: {}", named, std::strerror(errno)));
    require_room(path_);
    return;
  }
  const fs::path folder = temporary_folder();
  require_room(folder);
  std::string pattern = (folder / "penstock-recording-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw Error(fmt::format("{} cannot be made: {}", pattern, std::strerror(errno)));
  path_ = pattern;
}

RecordingFolder::~RecordingFolder() {
  std::error_code error;
  if (!stays_) fs::remove_all(path_, error);
}

Recorder::Recorder(const DoctorOptions& options, bool quiet)
    : library_(find_recorder(options.recorder)), quiet_(quiet) {
  refuse_other_injection();
  check_recorder_variables();
  if (options.no_lines) left_out_ = "lines";
  if (options.no_contents) left_out_ += left_out_.empty() ? "contents" : ",contents";
}

int Recorder::run(const std::vector<std::string>& words, const RecordingFolder& folder) const {
  std::vector<std::string> variables{fmt::format("{}={}", kInjection, library_.string()),
                                     fmt::format("PENSTOCK_RECORD={}", folder.path().string()),
                                     fmt::format("PENSTOCK_RECORD_WITHOUT={}", left_out_)};
  // Ranges tell the steps. Another tool that wants them has them.
  if (std::getenv(kRangeInjection) == nullptr)
    variables.push_back(fmt::format("{}={}", kRangeInjection, library_.string()));
  return wait_for_program(
      start_program(words, {.variables = std::move(variables), .quiet = quiet_}, start_hints(words)));
}

}  // namespace penstock::cli
