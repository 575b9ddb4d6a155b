#pragma once

#include <string>
#include <vector>

namespace penstock::cli {

/// Runs the command, and returns its exit status. `arguments`: the program's name first. `python`: the
/// program that runs the package; a name without a slash is looked for in the PATH. Once in a process: it
/// takes over the signals, the standard streams and the log sink.
int run_command(const std::vector<std::string>& arguments, const std::string& python);

}  // namespace penstock::cli
