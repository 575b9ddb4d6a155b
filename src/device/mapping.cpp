#include "device/shared/mapping.hpp"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace penstock {

MappingKind inspect_mapping(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + bytes;
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t covered = begin;
  MappingKind kind{.readable = true, .writable = true};
  for (std::string line; covered < end && std::getline(maps, line);) {
    unsigned long low = 0;
    unsigned long high = 0;
    char read = '-';
    char write = '-';
    if (std::sscanf(line.c_str(), "%lx-%lx %c%c", &low, &high, &read, &write) != 4 || high <= covered)
      continue;
    if (low > covered) return {};
    covered = high;
    kind.readable = kind.readable && read == 'r';
    kind.writable = kind.writable && write == 'w';
  }
  return covered >= end ? kind : MappingKind{};
}

}  // namespace penstock
