#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::cli {

/// Runs the command, and returns its exit status. `arguments`: the program's name first. `chart_library`:
/// where d3.min.js may lie besides its usual place; may be empty. Once in a process: it takes over the
/// signals, the standard streams and the log sink.
int run_command(const std::vector<std::string>& arguments, const std::filesystem::path& chart_library);

}  // namespace penstock::cli
