#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace penstock::cli {

/// Keeps files that are opened later from taking the place of a standard descriptor that is closed, and turns
/// a pipe without a reader, and a file past its limit, into errors in place of signals.
void prepare_standard_streams();

/// Writes for people to standard output, made printable. Throws Error where not all of it can be written.
void print(std::string_view text);
/// Writes for people to standard error, made printable, as far as that can be: a log on a full disk ends no
/// feed.
void say(std::string_view text) noexcept;
/// The same of what moves the cursor of a terminal.
void draw(std::string_view text) noexcept;

/// A file that the command is told to write. A regular file is replaced at the end, in one go; what is there
/// stays until then, and if the write fails. A FIFO, a device and the file that standard output already is
/// are written as they are.
class OutputFile {
 public:
  /// Finds out whether `file` can be written, before any work is done for it. `option` names it in errors;
  /// "-" is standard output, and an empty `file` none at all. Throws Error.
  OutputFile(std::string option, std::string file);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// False if nothing is to be written.
  explicit operator bool() const noexcept { return !file_.empty(); }
  [[nodiscard]] bool is_standard_output() const noexcept { return file_ == "-"; }

  /// Throws UsageError if this is the same file as `other`, which is called `what`.
  void keep_off(const std::filesystem::path& other, std::string_view what) const;

  /// Once. Throws Error that names the file, and Interrupted where the user asks to stop while a reader keeps
  /// the command waiting.
  void write(std::string_view text);

 private:
  std::string option_;
  std::string file_;
  std::filesystem::path target_;  ///< what `file_` leads to
  int descriptor_ = -1;           ///< of what is no regular file
};

/// Runs every step, also after one has failed, and then throws what the first failed one threw. Interrupted
/// ends it at once.
void run_all(std::initializer_list<std::function<void()>> steps);

}  // namespace penstock::cli
