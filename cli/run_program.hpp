#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace penstock::cli {

/// Starts the program `words[0]` of the PATH, with `variables` ("NAME=value") before those of this process,
/// and with signals as a shell gives them. If `quiet`, what it prints goes to standard error. Throws Error;
/// if there is no such program, with `missing`.
[[nodiscard]] pid_t start_program(std::vector<std::string> words, std::vector<std::string> variables,
                                  bool quiet, const std::string& missing);

/// Waits for the program's end, and returns its exit status, or 128 and the number of the signal that ended
/// it. Passes signals on to it meanwhile; those of the terminal, it gets from there.
[[nodiscard]] int wait_for_program(pid_t process);

}  // namespace penstock::cli
