#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace penstock::test {

/// Where the kernel's own pages begin that are mapped as a driver maps memory; 0: there are none.
inline std::uintptr_t kernel_pages() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[vvar]") != std::string::npos) return std::stoul(line, nullptr, 16);
  }
  return 0;
}

}  // namespace penstock::test
