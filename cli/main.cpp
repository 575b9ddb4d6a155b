#include "run_command.hpp"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

int main(int argc, char** argv) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::filesystem::path chart_library;
  if (!error) chart_library = program.parent_path().parent_path() / "share" / "penstock" / "d3.min.js";
  return penstock::cli::run_command(std::vector<std::string>(argv, argv + argc), chart_library, "python3");
}
