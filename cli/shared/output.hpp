#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace penstock::cli {

/// Opens /dev/null for closed standard descriptors, so that later files do not take their numbers. Makes
/// writing to a pipe without a reader, or past a file's size limit, an error instead of a signal.
void prepare_standard_streams();

/// Writes printable text to standard output. Throws Error if not all of it can be written.
void print(std::string_view text);
/// Writes printable text to standard error. Ignores failures: a log on a full disk does not end a feed.
void say(std::string_view text) noexcept;
/// The same for text that moves the cursor of a terminal.
void draw(std::string_view text) noexcept;

/// A file that the command is told to write. A regular file is replaced as a whole at the end; until then,
/// and if the write fails, the old file stays. A FIFO, a device and standard output's own file are written in
/// place.
class OutputFile {
 public:
  /// Checks that `file` can be written, before any work is done for it. `option` names it in errors. "-" is
  /// standard output; an empty `file` writes nothing. Throws Error.
  OutputFile(std::string option, std::string file);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// False if there is nothing to write.
  explicit operator bool() const noexcept { return !file_.empty(); }
  [[nodiscard]] bool is_standard_output() const noexcept { return file_ == "-"; }

  /// Throws UsageError if this is the same file as `other`, which is called `what`.
  void keep_off(const std::filesystem::path& other, std::string_view what) const;

  /// Called once. Throws Error that names the file. If the user asks to stop while a reader keeps the command
  /// waiting, throws Interrupted.
  void write(std::string_view text);

 private:
  std::string option_;
  std::string file_;
  std::filesystem::path target_;  ///< the file that `file_` leads to
  int descriptor_ = -1;           ///< set if it is not a regular file
};

/// Runs every step, also after a failure, and then throws the first failure. Interrupted ends it at once.
void run_all(std::initializer_list<std::function<void()>> steps);

}  // namespace penstock::cli
