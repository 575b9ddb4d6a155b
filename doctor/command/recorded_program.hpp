#pragma once

#include "doctor/command/doctor_command.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::cli {

/// A folder for recordings. Unless it is the user's, or is to stay, it ends with this object.
class RecordingFolder {
 public:
  /// Makes the folder `named`, or, if that is empty, one below TMPDIR. Throws UsageError or Error if it
  /// cannot be used, or has no room.
  explicit RecordingFolder(const std::string& named);
  ~RecordingFolder();
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void keep() noexcept { stays_ = true; }

 private:
  bool stays_;
  std::filesystem::path path_;
};

/// Runs programs under the recorder.
class Recorder {
 public:
  /// If `quiet`, what the programs print goes to standard error. Throws Error if the library is missing or
  /// another one is to record the program, and UsageError if a variable for it is wrong.
  Recorder(const DoctorOptions& options, bool quiet);

  /// Waits for the program's end, and returns its exit status.
  [[nodiscard]] int run(const std::vector<std::string>& words, const RecordingFolder& folder) const;

 private:
  std::filesystem::path library_;
  bool quiet_;
  std::string left_out_;  ///< of what is recorded, with commas
};

}  // namespace penstock::cli
