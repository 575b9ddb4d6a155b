#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// The numbers of a list as sysfs writes it: "0-3,8,10-11".
std::vector<unsigned> numbers_of_list(const std::string& list) {
  std::vector<unsigned> numbers;
  const char* const end = list.data() + list.size();
  for (const char* at = list.data(); at < end; ++at) {
    unsigned first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) break;
    unsigned last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc()) break;
    for (unsigned number = first; number <= last; ++number) numbers.push_back(number);
    at = read.ptr;
  }
  return numbers;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t start = line.find_first_not_of(" \t:", line.find(':'));
    if (start != std::string::npos) return line.substr(start);
  }
  utsname system{};
  if (uname(&system) == 0) return fmt::format("{} processor", system.machine);
  return "unknown processor";
}

/// Path of this process in a cgroup hierarchy: "0::/a/b" of version 2, or the line of `controller`.
std::string cgroup_path(std::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool matches =
        controller.empty() ? names == ",," : names.find(fmt::format(",{},", controller)) != std::string::npos;
    if (matches) return line.substr(second + 1);
  }
  return "/";
}

/// The least value of `read(directory)` for the process's group and the groups above it.
template <typename Read>
double least_up_the_tree(const std::string& root, std::string path, Read&& read) {
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    least = std::min(least, read(root + path));
    const std::size_t slash = path.find_last_of('/');
    if (path.size() <= 1 || slash == std::string::npos) break;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
  return least;
}

double number(const std::string& text) {
  double value = std::numeric_limits<double>::infinity();
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

double ratio(double quota, double period) {
  return quota > 0 && period > 0 && std::isfinite(period) ? quota / period
                                                          : std::numeric_limits<double>::infinity();
}

/// Processor time that the cgroups grant, in processors; infinite if they set no limit.
double cgroup_processors() {
  const double v2 = least_up_the_tree("/sys/fs/cgroup", cgroup_path(""), [](const std::string& directory) {
    const std::string line = first_line(directory + "/cpu.max");
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return std::numeric_limits<double>::infinity();
    return ratio(number(line.substr(0, space)), number(line.substr(space + 1)));
  });
  const double v1 =
      least_up_the_tree("/sys/fs/cgroup/cpu", cgroup_path("cpu"), [](const std::string& directory) {
        return ratio(number(first_line(directory + "/cpu.cfs_quota_us")),
                     number(first_line(directory + "/cpu.cfs_period_us")));
      });
  return std::min(v1, v2);
}

double cgroup_memory() {
  const double v2 = least_up_the_tree("/sys/fs/cgroup", cgroup_path(""), [](const std::string& directory) {
    return number(first_line(directory + "/memory.max"));
  });
  const double v1 = least_up_the_tree(
      "/sys/fs/cgroup/memory", cgroup_path("memory"),
      [](const std::string& directory) { return number(first_line(directory + "/memory.limit_in_bytes")); });
  return std::min(v1, v2);
}

/// The number after `name` in a file of lines "name number".
double number_of(const std::string& path, std::string_view name, double otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t digits = line.find_first_of("0123456789", name.size());
    if (digits != std::string::npos) return number(line.substr(digits));
  }
  return otherwise;
}

/// What the limit of a control group leaves. Pages of files that nobody has read lately go first.
double left_in_cgroup(const std::string& directory, const char* limit, const char* usage, const char* files) {
  const double used = number(first_line(directory + usage));
  if (!std::isfinite(used)) return std::numeric_limits<double>::infinity();
  return number(first_line(directory + limit)) - used + number_of(directory + "/memory.stat", files, 0);
}

unsigned usable_processors() {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  auto count = static_cast<unsigned>(std::max(online, 1L));
  // The kernel refuses a mask smaller than its own, so the size grows until it fits.
  for (int size = CPU_SETSIZE; size <= CPU_SETSIZE * 64; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(size), set.get()) != 0) continue;
    count = static_cast<unsigned>(CPU_COUNT_S(CPU_ALLOC_SIZE(size), set.get()));
    break;
  }
  const double granted = std::ceil(cgroup_processors());
  if (granted < count) count = static_cast<unsigned>(granted);
  return std::max(count, 1U);
}

HostTopology read_topology() {
  HostTopology topology;
  topology.processor = processor_name();
  topology.processors = usable_processors();
  const auto nodes = numbers_of_list(first_line("/sys/devices/system/node/online"));
  topology.numa_nodes = static_cast<unsigned>(std::max(nodes.size(), std::size_t{1}));
  const double installed =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  topology.memory_bytes = static_cast<std::size_t>(std::min(installed, cgroup_memory()));
  return topology;
}

/// Turns "0000:3B:00.0", or the driver's form with an eight-digit domain, into sysfs's "0000:3b:00.0".
std::string pci_directory(const std::string& bus_id) {
  std::string name;
  for (const char c : bus_id) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.find_first_not_of("0123456789abcdef:.") != std::string::npos) return {};
  const std::size_t colon = name.find(':');
  if (colon == std::string::npos || name.find(':', colon + 1) == std::string::npos) return {};
  if (colon > 4 && name.find_first_not_of('0') >= colon - 4) name.erase(0, colon - 4);
  return "/sys/bus/pci/devices/" + name;
}

/// The generation that "32.0 GT/s PCIe" or "8 GT/s" states; 0 for anything else.
unsigned parse_generation(const std::string& speed) {
  double rate = 0;
  std::from_chars(speed.data(), speed.data() + speed.size(), rate);
  constexpr double kRates[] = {2.5, 5, 8, 16, 32, 64};
  unsigned generation = 0;
  for (const double known : kRates) {
    ++generation;
    if (std::abs(rate - known) < 0.1) return generation;
  }
  return 0;
}

unsigned parse_width(const std::string& text) {
  unsigned width = 0;
  std::from_chars(text.data(), text.data() + text.size(), width);
  return width <= 32 ? width : 0;
}

constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMostNodes = 1024;  // the kernel's own limit
/// One word more than the nodes need: the kernel reads one bit fewer than the count it is given.
using NodeMask = std::array<unsigned long, kMostNodes / kWordBits + 1>;

bool set_memory_policy(void* data, std::size_t bytes, int policy, const NodeMask& nodes) noexcept {
  if (data == nullptr || bytes == 0) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t page = begin & ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  const std::size_t length = begin - page + bytes;
  return syscall(SYS_mbind, page, length, policy, nodes.data(), sizeof nodes * CHAR_BIT, 0) == 0;
}

/// True if this process has CAP_IPC_LOCK, which lifts the limit. Root in a container often lacks it.
bool may_lock_freely() noexcept {
  try {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("CapEff:")) continue;
      const std::size_t digits = line.find_first_not_of(" \t", 7);
      if (digits == std::string::npos) return false;
      std::uint64_t effective = 0;
      std::from_chars(line.data() + digits, line.data() + line.size(), effective, 16);
      return (effective >> CAP_IPC_LOCK & 1) != 0;
    }
  } catch (...) {  // out of memory while reading the file: the limit stands
  }
  return false;
}

std::vector<unsigned> processors_of_node(int numa_node) {
  if (numa_node < 0) return {};
  return numbers_of_list(first_line(fmt::format("/sys/devices/system/node/node{}/cpulist", numa_node)));
}

}  // namespace

double LinkInfo::theoretical_bytes_per_second() const noexcept {
  if (max_generation == 0 || max_generation > 6 || max_width == 0) return 0;
  constexpr double kTransfers[] = {2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9};
  const double encoding = max_generation <= 2 ? 8.0 / 10 : max_generation <= 5 ? 128.0 / 130 : 242.0 / 256;
  return kTransfers[max_generation - 1] * encoding * max_width / 8;
}

const HostTopology& host_topology() {
  static const auto* const topology =
      new HostTopology(read_topology());  // threads may outlive the program's end
  return *topology;
}

std::size_t free_host_memory() {
  const double v2 = least_up_the_tree("/sys/fs/cgroup", cgroup_path(""), [](const std::string& directory) {
    return left_in_cgroup(directory, "/memory.max", "/memory.current", "inactive_file ");
  });
  const double v1 =
      least_up_the_tree("/sys/fs/cgroup/memory", cgroup_path("memory"), [](const std::string& directory) {
        return left_in_cgroup(directory, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                              "total_inactive_file ");
      });
  const double installed = static_cast<double>(host_topology().memory_bytes);
  const double available = 1024 * number_of("/proc/meminfo", "MemAvailable:", installed / 1024);
  return static_cast<std::size_t>(std::clamp(std::min({available, v1, v2}), 0.0, installed));
}

int numa_node_of_pci(const std::string& bus_id) {
  const std::string directory = pci_directory(bus_id);
  if (directory.empty()) return -1;
  const std::string text = first_line(directory + "/numa_node");
  int node = -1;
  std::from_chars(text.data(), text.data() + text.size(), node);
  return node;
}

LinkInfo link_of_pci(const std::string& bus_id) {
  const std::string directory = pci_directory(bus_id);
  if (directory.empty()) return {};
  LinkInfo link;
  link.generation = parse_generation(first_line(directory + "/current_link_speed"));
  link.width = parse_width(first_line(directory + "/current_link_width"));
  link.max_generation = parse_generation(first_line(directory + "/max_link_speed"));
  link.max_width = parse_width(first_line(directory + "/max_link_width"));
  return link;
}

bool bind_thread_to_node(int numa_node) noexcept {
  try {
    const std::vector<unsigned> processors = processors_of_node(numa_node);
    if (processors.empty()) return false;
    const int count = static_cast<int>(*std::max_element(processors.begin(), processors.end())) + 1;
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) return false;
    CPU_ZERO_S(bytes, set.get());
    for (const unsigned processor : processors) CPU_SET_S(processor, bytes, set.get());
    return sched_setaffinity(0, bytes, set.get()) == 0;
  } catch (...) {  // out of memory while reading the file
    return false;
  }
}

bool bind_memory_to_node(void* data, std::size_t bytes, int numa_node) noexcept {
  if (numa_node < 0 || numa_node >= kMostNodes) return false;
  NodeMask nodes{};
  nodes[static_cast<std::size_t>(numa_node / kWordBits)] = 1UL << numa_node % kWordBits;
  return set_memory_policy(data, bytes, MPOL_PREFERRED, nodes);
}

bool interleave_memory(void* data, std::size_t bytes) noexcept {
  NodeMask nodes{};
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMostNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0)
    return false;
  return set_memory_policy(data, bytes, MPOL_INTERLEAVE, nodes);
}

std::optional<std::size_t> lock_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_lock_freely())
    return {};
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace penstock
