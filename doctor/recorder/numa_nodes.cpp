#include "numa_nodes.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace penstock::recorder {

namespace {

constexpr std::size_t kPage = 4096;
constexpr long kMostNodes = 254;

std::uint8_t known(long node) noexcept {
  return node >= 0 && node < kMostNodes ? static_cast<std::uint8_t>(node + 1) : std::uint8_t{0};
}

/// The number that is all of a file's first line. -1: it is something else, or there is no such file.
long number_in(const char* path) noexcept {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  char text[32] = {};
  const ssize_t got = ::read(file, text, sizeof text - 1);
  ::close(file);
  char* end = text;
  const long number = got > 0 ? std::strtol(text, &end, 10) : -1;
  return end != text && *end == '\n' ? number : -1;
}

}  // namespace

std::uint8_t node_of_memory(const void* begin, std::uint64_t bytes) noexcept {
  const std::uintptr_t middle = reinterpret_cast<std::uintptr_t>(begin) + bytes / 2;
  const std::uintptr_t page = middle / kPage * kPage;
  int node = -1;
  // Without nodes to move to, it is a question. The library's own wrapper needs libnuma.
  const long result = ::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0);
  return result == 0 ? known(node) : std::uint8_t{0};
}

std::uint8_t node_of_this_thread() noexcept {
  unsigned processor = 0;
  unsigned node = 0;
  return ::syscall(SYS_getcpu, &processor, &node, nullptr) == 0 ? known(static_cast<long>(node))
                                                                : std::uint8_t{0};
}

std::uint8_t node_of_pci(const char* sysfs, const char* bus_id) noexcept {
  // The driver writes capitals, and in some versions a domain of eight digits.
  const char* const colon = std::strchr(bus_id, ':');
  while (colon != nullptr && colon - bus_id > 4 && *bus_id == '0') ++bus_id;
  char path[256];
  const int length = std::snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sysfs, bus_id);
  if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) return 0;
  for (char* c = path + std::strlen(sysfs); *c != 0; ++c) {
    if (*c >= 'A' && *c <= 'F') *c = static_cast<char>(*c - 'A' + 'a');
  }
  return known(number_in(path));
}

std::uint8_t only_node(const char* sysfs) noexcept {
  char path[256];
  const int length = std::snprintf(path, sizeof path, "%s/devices/system/node/online", sysfs);
  return length > 0 && static_cast<std::size_t>(length) < sizeof path ? known(number_in(path))
                                                                      : std::uint8_t{0};
}

}  // namespace penstock::recorder
