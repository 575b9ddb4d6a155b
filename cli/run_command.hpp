#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::cli {

/// Runs the command, and returns its exit status. `arguments`: the program's name first. `chart_library`:
/// where d3.min.js may lie besides its usual place; may be empty. `python`: the program that runs the
/// package; a name without a slash is looked for in the PATH. Once in a process: it takes over the signals,
/// the standard streams and the log sink.
int run_command(const std::vector<std::string>& arguments, const std::filesystem::path& chart_library,
                const std::string& python);

}  // namespace penstock::cli
