#include "run_command.hpp"

#include <string>
#include <vector>

int main(int argc, char** argv) {
  return penstock::cli::run_command(std::vector<std::string>(argv, argv + argc), "python3");
}
