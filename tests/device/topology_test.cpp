#include <penstock/device/topology.hpp>

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

TEST(Topology, HostHasAtLeastOneOfEach) {
  const HostTopology& topology = host_topology();
  EXPECT_FALSE(topology.processor.empty());
  EXPECT_GE(topology.processors, 1u);
  EXPECT_LE(topology.processors, std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_GE(topology.numa_nodes, 1u);
  EXPECT_GE(topology.memory_bytes, std::size_t{64} << 20);
  EXPECT_EQ(&host_topology(), &topology);
}

TEST(Topology, FreeMemoryShrinksByWhatIsTaken) {
  constexpr std::size_t kTaken = std::size_t{256} << 20;
  // Other programs give memory back meanwhile, so it is tried again until they give none.
  for (int tries = 0; tries < 100; ++tries) {
    const std::size_t before = free_host_memory();
    ASSERT_LE(before, host_topology().memory_bytes);
    ASSERT_GT(before, kTaken);
    const std::vector<char> taken(kTaken, 'x');
    if (free_host_memory() < before - kTaken / 2) return;
    ASSERT_EQ(taken[kTaken / 2], 'x');
  }
  FAIL() << "100 times, free_host_memory() did not see that 256 MiB were taken";
}

TEST(Topology, ProcessorsFollowTheAffinityMask) {
  // In a child, since the figure is cached until the process ends, and this process may have read it.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(3);
    execl("/proc/self/exe", "test_device", "--gtest_filter=TopologyChild.DISABLED_OneProcessor",
          "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// Run in the process that the test above starts.
TEST(TopologyChild, DISABLED_OneProcessor) { EXPECT_EQ(host_topology().processors, 1u); }

TEST(Topology, LinkFromItsGenerationAndWidth) {
  const auto rate = [](unsigned generation, unsigned width) {
    LinkInfo link;
    link.max_generation = generation;
    link.max_width = width;
    return link.theoretical_bytes_per_second() / 1e9;
  };
  EXPECT_NEAR(rate(1, 1), 0.25, 1e-9);
  EXPECT_NEAR(rate(2, 16), 8.0, 1e-9);
  EXPECT_NEAR(rate(3, 16), 15.754, 1e-3);
  EXPECT_NEAR(rate(4, 16), 31.508, 1e-3);
  EXPECT_NEAR(rate(5, 16), 63.015, 1e-3);
  EXPECT_NEAR(rate(6, 16), 121.0, 1e-3);
  EXPECT_EQ(rate(0, 16), 0);
  EXPECT_EQ(rate(5, 0), 0);
  EXPECT_EQ(rate(7, 16), 0);
}

TEST(Topology, UnknownPciDevicesAreUnknown) {
  for (const char* id : {"", "nonsense", "ffff:ff:1f.7", "../../../../etc", "0000:zz:00.0", "3b:00.0"}) {
    EXPECT_EQ(numa_node_of_pci(id), -1) << id;
    const LinkInfo link = link_of_pci(id);
    EXPECT_EQ(link.generation + link.width + link.max_generation + link.max_width, 0u) << id;
  }
}

TEST(Topology, PciDevicesOfThisMachineAgreeWithItsFiles) {
  const std::filesystem::path root = "/sys/bus/pci/devices";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "this machine shows no PCI devices";
  for (const auto& device : std::filesystem::directory_iterator(root)) {
    const std::string id = device.path().filename().string();
    std::ifstream file(device.path() / "numa_node");
    int node = -1;
    file >> node;
    EXPECT_EQ(numa_node_of_pci(id), file ? node : -1) << id;
    std::ifstream width_file(device.path() / "current_link_width");
    unsigned width = 0;
    width_file >> width;
    const LinkInfo link = link_of_pci(id);
    EXPECT_EQ(link.width, width <= 32 ? width : 0) << id;
    EXPECT_LE(link.max_generation, 6u);
    // The driver writes the domain with eight digits, and capital letters.
    EXPECT_EQ(numa_node_of_pci("0000" + id), numa_node_of_pci(id));
  }
}

TEST(Topology, BindingIsAHint) {
  EXPECT_FALSE(bind_thread_to_node(-1));
  EXPECT_FALSE(bind_thread_to_node(4095));
  EXPECT_FALSE(bind_memory_to_node(nullptr, 4096, 0));
  void* const pages = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_FALSE(bind_memory_to_node(pages, 1 << 16, -1));
  EXPECT_FALSE(bind_memory_to_node(pages, 1 << 16, 4095));
  static_cast<void>(bind_memory_to_node(pages, 1 << 16, 0));
  static_cast<volatile char*>(pages)[12345] = 1;
  munmap(pages, 1 << 16);
}

TEST(Topology, BoundThreadRunsOnTheNodesProcessors) {
  std::set<unsigned> wanted;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node/node0")) {
    const std::string name = entry.path().filename();
    if (name.size() > 3 && name.starts_with("cpu") && std::isdigit(name[3]))
      wanted.insert(std::stoul(name.substr(3)));
  }
  std::thread([&] {
    if (!bind_thread_to_node(0)) GTEST_SKIP() << "the system does not bind threads";
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    std::set<unsigned> bound;
    for (unsigned processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &set)) bound.insert(processor);
    }
    // A cpuset may leave this process fewer processors than the node has.
    EXPECT_TRUE(std::includes(wanted.begin(), wanted.end(), bound.begin(), bound.end()));
    EXPECT_FALSE(bound.empty());
  }).join();
}

TEST(Topology, NumaNodesAreThoseOfTheSystem) {
  const std::filesystem::path root = "/sys/devices/system/node";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "this machine names no NUMA nodes";
  unsigned nodes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (name.size() > 4 && name.starts_with("node") && std::isdigit(name[4])) ++nodes;
  }
  EXPECT_EQ(host_topology().numa_nodes, std::max(nodes, 1u));
}

TEST(Topology, BoundMemoryPrefersTheNode) {
  constexpr std::size_t kBytes = std::size_t{1} << 16;
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  // A range that begins and ends within a page: all pages that it touches follow.
  char* const begin = static_cast<char*>(pages) + 100;
  const bool bound = bind_memory_to_node(begin, kBytes - 200, 0);
  int policy = -1;
  unsigned long nodes[17] = {};
  const long asked = syscall(SYS_get_mempolicy, &policy, nodes, sizeof nodes * 8, begin, MPOL_F_ADDR);
  munmap(pages, kBytes);
  if (!bound || asked != 0) GTEST_SKIP() << "the system does not bind memory";
  EXPECT_EQ(policy, MPOL_PREFERRED);
  EXPECT_EQ(nodes[0], 1UL);
}

TEST(Topology, InterleavedMemoryLiesOnAllAllowedNodes) {
  constexpr std::size_t kBytes = std::size_t{1} << 16;
  EXPECT_FALSE(interleave_memory(nullptr, kBytes));
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const bool spread = interleave_memory(pages, kBytes);
  int policy = -1;
  unsigned long nodes[17] = {};
  unsigned long allowed[17] = {};
  const long asked = syscall(SYS_get_mempolicy, &policy, nodes, sizeof nodes * 8, pages, MPOL_F_ADDR);
  syscall(SYS_get_mempolicy, nullptr, allowed, sizeof allowed * 8, nullptr, MPOL_F_MEMS_ALLOWED);
  munmap(pages, kBytes);
  if (!spread || asked != 0) GTEST_SKIP() << "the system does not bind memory";
  EXPECT_EQ(policy, MPOL_INTERLEAVE);
  EXPECT_TRUE(std::equal(std::begin(nodes), std::end(nodes), std::begin(allowed)));
}

TEST(Topology, LockLimitIsTheSoftLimitOrNone) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  const auto known = lock_limit();
  if (known) {
    EXPECT_EQ(*known, limit.rlim_cur);
  } else {
    EXPECT_TRUE(limit.rlim_cur == RLIM_INFINITY || geteuid() == 0 || access("/proc/self/status", R_OK) == 0);
  }
}

}  // namespace
}  // namespace penstock
