#include "doctor/recorder/numa_nodes.hpp"

#include "doctor/recorder/host_memory.hpp"
#include "doctor/tests/recorder/kernel_pages.hpp"
#include "support/temp_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::recorder {
namespace {

constexpr std::size_t kMapped = 1 << 20;

/// Memory whose pages nobody has touched.
class UntouchedMemory {
 public:
  UntouchedMemory()
      : data_(static_cast<char*>(
            ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    ::madvise(data_, kMapped, MADV_NOHUGEPAGE);
  }
  ~UntouchedMemory() { ::munmap(data_, kMapped); }
  UntouchedMemory(const UntouchedMemory&) = delete;
  UntouchedMemory& operator=(const UntouchedMemory&) = delete;
  [[nodiscard]] char* data() const { return data_; }

 private:
  char* data_;
};

/// What the kernel says of a page, by another call, which would make an untouched page. -1: it says nothing.
int node_by_policy(void* page) {
  constexpr unsigned long kNode = 1;
  constexpr unsigned long kOfAddress = 2;
  int node = -1;
  return ::syscall(SYS_get_mempolicy, &node, nullptr, 0, page, kNode | kOfAddress) == 0 ? node : -1;
}

/// False in containers that forbid to ask.
bool may_ask_for_nodes() {
  int node = 0;
  void* page = &node;
  int status = -1;
  return ::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &status, 0) == 0;
}

TEST(NumaNodes, OfMemoryAreThoseOfItsMiddle) {
  const UntouchedMemory memory;
  memory.data()[0] = memory.data()[kMapped - 1] = 1;
  EXPECT_EQ(node_of_memory(memory.data(), kMapped), 0U) << "nobody has touched the middle";
  memory.data()[kMapped / 2] = 1;
  const int node = may_ask_for_nodes() ? node_by_policy(memory.data() + kMapped / 2) : -1;
  EXPECT_EQ(node_of_memory(memory.data(), kMapped), node + 1);
}

TEST(NumaNodes, OfUntouchedMemoryAreNotKnownAndItStaysUntouched) {
  const UntouchedMemory memory;
  EXPECT_EQ(node_of_memory(memory.data(), kMapped), 0U);
  unsigned char present[kMapped / 4096];
  ASSERT_EQ(::mincore(memory.data(), kMapped, present), 0);
  for (const unsigned char page : present) EXPECT_EQ(page & 1, 0);
}

TEST(NumaNodes, OfMemoryThatIsNoneAreNotKnown) {
  EXPECT_EQ(node_of_memory(nullptr, 1 << 20), 0U);
  EXPECT_EQ(node_of_memory(reinterpret_cast<const void*>(std::uintptr_t{0x7f0000000000}), 1 << 20), 0U);
  EXPECT_EQ(node_of_memory(reinterpret_cast<const void*>(~std::uintptr_t{0}), ~std::uint64_t{0}), 0U);
}

TEST(NumaNodes, OfADriversMappingAreNotKnown) {
  const std::uintptr_t pages = test::kernel_pages();
  if (pages == 0) GTEST_SKIP() << "this kernel maps none of its pages";
  EXPECT_EQ(node_of_memory(reinterpret_cast<const void*>(pages), 64), 0U);
}

TEST(NumaNodes, OfAThreadAreThoseOfItsProcessor) {
  // It may be moved to another node between two questions.
  bool same = false;
  for (int i = 0; i < 100 && !same; ++i) {
    unsigned node = 0;
    ASSERT_EQ(::syscall(SYS_getcpu, nullptr, &node, nullptr), 0);
    same = node_of_this_thread() == node + 1;
  }
  EXPECT_TRUE(same);
}

/// A /sys of the test's own.
class Sysfs {
 public:
  void write(const std::string& name, std::string_view text) const {
    static_cast<void>(folder_.write(name, std::as_bytes(std::span(text))));
  }
  [[nodiscard]] std::uint8_t pci(const char* bus_id) const { return node_of_pci(root().c_str(), bus_id); }
  [[nodiscard]] std::uint8_t only() const { return only_node(root().c_str()); }

 private:
  [[nodiscard]] std::string root() const { return folder_.path().string(); }

  test::TempDirectory folder_;
};

TEST(NumaNodes, OfDevicesAreThoseOfSysfs) {
  const Sysfs sysfs;
  sysfs.write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  sysfs.write("bus/pci/devices/0001:ca:00.0/numa_node", "0\n");
  sysfs.write("bus/pci/devices/0002:00:00.0/numa_node", "-1\n");
  sysfs.write("bus/pci/devices/0003:00:00.0/numa_node", "253\n");
  sysfs.write("bus/pci/devices/0004:00:00.0/numa_node", "254\n");
  sysfs.write("bus/pci/devices/0005:00:00.0/numa_node", "");
  sysfs.write("bus/pci/devices/0006:00:00.0/numa_node", "18446744073709551617\n");
  EXPECT_EQ(sysfs.pci("0000:3B:00.0"), 2U) << "as the driver writes it";
  EXPECT_EQ(sysfs.pci("00000001:CA:00.0"), 1U);
  EXPECT_EQ(sysfs.pci("0002:00:00.0"), 0U) << "the system does not know it";
  EXPECT_EQ(sysfs.pci("0003:00:00.0"), 254U);
  EXPECT_EQ(sysfs.pci("0004:00:00.0"), 0U) << "a recording has no room for it";
  EXPECT_EQ(sysfs.pci("0005:00:00.0"), 0U);
  EXPECT_EQ(sysfs.pci("0006:00:00.0"), 0U) << "1, if the number overflows";
  EXPECT_EQ(sysfs.pci("0007:00:00.0"), 0U) << "there is none";
  EXPECT_EQ(sysfs.pci(std::string(1000, '0').c_str()), 0U);
}

TEST(NumaNodes, AreOneIfTheMachineHasOnlyOne) {
  const auto only = [](std::string_view online) {
    const Sysfs sysfs;
    sysfs.write("devices/system/node/online", online);
    return sysfs.only();
  };
  EXPECT_EQ(only("0\n"), 1U);
  EXPECT_EQ(only("3\n"), 4U);
  EXPECT_EQ(only("0-1\n"), 0U);
  EXPECT_EQ(only("1-2\n"), 0U);
  EXPECT_EQ(only("0,2\n"), 0U);
  EXPECT_EQ(only(""), 0U);
  EXPECT_EQ(only("\n"), 0U);
  EXPECT_EQ(Sysfs().only(), 0U) << "/sys is hidden";
}

TEST(HostMemory, IsThatOfCallsWhoseParametersAreKnown) {
  for (const char* const name : {"cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2_ptsz"})
    EXPECT_EQ(copy_call(kDriverDomain, name), CopyCall::to_device) << name;
  for (const char* const name : {"cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2_ptsz"})
    EXPECT_EQ(copy_call(kDriverDomain, name), CopyCall::to_host) << name;
  for (const char* const name : {"cudaMemcpy_v3020", "cudaMemcpyAsync_ptsz_v7000"})
    EXPECT_EQ(copy_call(kRuntimeDomain, name), CopyCall::as_told) << name;
  for (const char* const name : {"cuMemcpyHtoD", "cuMemcpyHtoA_v2", "cuMemcpyDtoD_v2", "cuMemcpyAsync"})
    EXPECT_EQ(copy_call(kDriverDomain, name), CopyCall::unknown) << name;
  for (const char* const name : {"cudaMemcpy2D_v3020", "cudaMemcpyToArray_v3020", "cudaMemcpyPeer_v4000"})
    EXPECT_EQ(copy_call(kRuntimeDomain, name), CopyCall::unknown) << name;
}

TEST(HostMemory, IsTheSourceOrTheDestination) {
  char source = 0;
  char destination = 0;
  const auto memory = [&](CopyCall call, std::int32_t direction) {
    return host_memory(call, {&destination, &source, 5, direction});
  };
  const auto expect = [](const HostMemory& is, const void* begin, bool is_source) {
    EXPECT_EQ(is.begin, begin);
    EXPECT_EQ(is.bytes, begin == nullptr ? 0U : 5U);
    EXPECT_EQ(is.is_source, is_source);
  };
  expect(memory(CopyCall::as_told, 1), &source, true);
  expect(memory(CopyCall::as_told, 2), &destination, false);
  expect(memory(CopyCall::as_told, 3), nullptr, false);
  expect(memory(CopyCall::as_told, 4), nullptr, false);  // it is not said
  // A stream is where the runtime has the direction.
  expect(memory(CopyCall::to_device, 77), &source, true);
  expect(memory(CopyCall::to_host, 77), &destination, false);
  expect(memory(CopyCall::unknown, 1), nullptr, false);
}

}  // namespace
}  // namespace penstock::recorder
