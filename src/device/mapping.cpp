#include "device/shared/mapping.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace penstock {

MappingKind inspect_mapping(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + bytes;
  constexpr const char* kMaps = "/proc/self/maps";
  std::ifstream maps(kMaps);
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
  if (covered < end && (!maps.is_open() || maps.bad())) {
    throw Unsupported(
        fmt::format("{} cannot be read ({}), which says whether memory may be locked. Close files if "
                    "too many are open.",
                    kMaps, std::strerror(errno)));
  }
  return covered >= end ? kind : MappingKind{};
}

}  // namespace penstock
