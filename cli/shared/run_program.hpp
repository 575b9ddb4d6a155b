#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

struct ProgramStart {
  std::vector<std::string> variables;  ///< "NAME=value", before those of this process
  bool quiet = false;                  ///< what it prints goes to standard error
  bool holds_interrupt = false;        ///< SIGINT waits until the program unblocks it
};

/// What to say if the program cannot be started.
struct StartHints {
  std::string missing = "";  ///< the PATH has no such program
  std::string instead = "";  ///< a command that may work if its file cannot be run, if there is one
};

/// The file that a word of a shell names, with or without a slash. Nullopt if there is none.
[[nodiscard]] std::optional<std::filesystem::path> find_program(const std::string& word);

/// The file of a library of ours that other programs load: beside the command or the Python module, or where
/// `cmake --install` puts it. Throws Error if it is missing.
[[nodiscard]] std::filesystem::path find_own_library(const std::string& name);

/// The words that run this command, before those of a user. `python`: the one that the command was started
/// in, if it was.
[[nodiscard]] std::vector<std::string> own_command(const std::string& python);

/// Starts the program `words[0]`, which is looked for in the PATH unless it has a slash, with signals as a
/// shell gives them. Throws Error, which says why it cannot be started, and what to do.
[[nodiscard]] pid_t start_program(std::vector<std::string> words, ProgramStart start,
                                  const StartHints& hints);

/// Waits for the program's end, and returns its exit status, or 128 and the number of the signal that ended
/// it. Passes signals on to it meanwhile; those of the terminal, it gets from there.
[[nodiscard]] int wait_for_program(pid_t process);

}  // namespace penstock::cli
