#include "device/contract_suite.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace penstock::testing {

namespace {

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// Pages of ordinary memory.
class Pages {
 public:
  explicit Pages(std::size_t count, int protection = PROT_READ | PROT_WRITE)
      : bytes_(count * page()),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::runtime_error("no memory for a test");
    std::memset(data_, 0x5C, bytes_);
    mprotect(data_, bytes_, protection);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST_P(Contract, DeviceMemoryIsAlignedAndDisjoint) {
  std::vector<std::unique_ptr<DeviceBytes>> blocks;
  for (const std::size_t bytes : {1, 3, 255, 256, 257, 4096, 100003, 5 << 20}) {
    blocks.push_back(std::make_unique<DeviceBytes>(device(), bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()->data()) % 256, 0u) << bytes;
  }
  std::vector<std::vector<std::byte>> contents;
  for (const auto& block : blocks) {
    contents.push_back(random_bytes(block->size(), contents.size()));
    upload(block->data(), contents.back());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(same_bytes(contents[i], download(blocks[i]->data(), blocks[i]->size())));
  }
}

TEST_P(Contract, DeviceMemoryRunsOutWithFigures) {
  const DeviceMemory before = backend().memory();
  const std::size_t asked = before.total + (std::size_t{1} << 20);
  try {
    backend().device_free(backend().device_allocate(asked));
    FAIL() << "more than there is was given";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), asked);
    EXPECT_LE(error.free(), before.total);
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos);
  }
  const DeviceBytes still(device(), 1 << 20);
  const auto bytes = random_bytes(1000, 1);
  upload(still.data(), bytes);
  EXPECT_TRUE(same_bytes(bytes, download(still.data(), bytes.size())));
}

TEST_P(Contract, FreeingNullIsNothing) {
  backend().device_free(nullptr);
  backend().host_free(nullptr);
}

TEST_P(Contract, KindsOfMemory) {
  const DeviceBytes on_device(device(), 1000);
  const PinnedBytes pinned(device(), 1000);
  const std::vector<std::byte> ordinary(1000);
  int local = 0;
  EXPECT_EQ(backend().kind_of(on_device.data()), MemoryKind::device);
  EXPECT_EQ(backend().kind_of(on_device.data() + 999), MemoryKind::device);
  EXPECT_EQ(backend().kind_of(pinned.data()), MemoryKind::pinned);
  EXPECT_EQ(backend().kind_of(pinned.data() + 999), MemoryKind::pinned);
  EXPECT_EQ(backend().kind_of(ordinary.data()), MemoryKind::pageable);
  EXPECT_EQ(backend().kind_of(&local), MemoryKind::pageable);
  EXPECT_EQ(backend().kind_of(nullptr), MemoryKind::pageable);
}

TEST_P(Contract, OnlyLockedMemoryHasADeviceAddress) {
  const DeviceBytes on_device(device(), 1000);
  const PinnedBytes pinned(device(), 1000);
  std::vector<std::byte> ordinary(1000);
  auto* const address = static_cast<std::byte*>(backend().device_address(pinned.data()));
  ASSERT_NE(address, nullptr);
  EXPECT_EQ(backend().device_address(pinned.data() + 10), address + 10);
  EXPECT_THROW(static_cast<void>(backend().device_address(ordinary.data())), InvalidArgument);
  EXPECT_THROW(static_cast<void>(backend().device_address(nullptr)), InvalidArgument);
}

TEST_P(Contract, RegisteredMemoryIsPinnedUntilUnregistered) {
  const Pages pages(4);
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pageable);
  backend().host_register(pages.data(), pages.size(), false);
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pinned);
  EXPECT_EQ(backend().kind_of(pages.data() + pages.size() - 1), MemoryKind::pinned);
  backend().host_unregister(pages.data());
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pageable);
  backend().host_register(pages.data(), page(), false);
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pinned);
  EXPECT_EQ(backend().kind_of(pages.data() + page()), MemoryKind::pageable);
  backend().host_unregister(pages.data());
}

TEST_P(Contract, KernelsReadAndWriteRegisteredMemory) {
  const Pages from(2);
  const Pages to(2);
  const auto bytes = random_bytes(from.size(), 6);
  std::memcpy(from.data(), bytes.data(), bytes.size());
  backend().host_register(from.data(), from.size(), false);
  backend().host_register(to.data(), to.size(), false);
  GatherRequest request;
  request.source = backend().device_address(from.data());
  request.source_rows = 2;
  request.row_elements = page();
  request.count = 2;
  request.destination = backend().device_address(to.data());
  stream().gather(request);
  stream().synchronize();
  EXPECT_TRUE(same_bytes(bytes, {to.data(), to.size()}));
  backend().host_unregister(to.data());
  backend().host_unregister(from.data());
}

TEST_P(Contract, ReadOnlyMappingsAreRegisteredReadOnlyOrRefused) {
  const Pages pages(2, PROT_READ);
  EXPECT_THROW(backend().host_register(pages.data(), pages.size(), false), Unsupported);
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pageable);
  try {
    backend().host_register(pages.data(), pages.size(), true);
  } catch (const Unsupported&) {
    return;
  }
  const DeviceBytes copy(device(), pages.size());
  stream().copy(copy.data(), pages.data(), pages.size(), CopyDirection::h2d);
  EXPECT_TRUE(
      same_bytes(std::vector<std::byte>(pages.size(), std::byte{0x5C}), download(copy.data(), copy.size())));
  backend().host_unregister(pages.data());
}

TEST_P(Contract, RefusedRegistrationsLeaveTheBackendUsable) {
  const Pages pages(4);
  EXPECT_THROW(backend().host_register(nullptr, page(), false), InvalidArgument);
  EXPECT_THROW(backend().host_register(pages.data(), 0, false), InvalidArgument);
  EXPECT_THROW(backend().host_register(pages.data() + 1, page(), false), InvalidArgument);
  EXPECT_THROW(backend().host_register(pages.data(), page() + 1, false), InvalidArgument);
  backend().host_register(pages.data() + page(), 2 * page(), false);
  EXPECT_THROW(backend().host_register(pages.data() + page(), page(), false), Unsupported);
  EXPECT_THROW(backend().host_register(pages.data(), 2 * page(), false), Unsupported);
  EXPECT_EQ(backend().kind_of(pages.data()), MemoryKind::pageable);
  backend().host_unregister(pages.data() + page());
  // The middle of a large hole. The next mapping of another thread goes to one of its ends.
  constexpr std::size_t kHole = std::size_t{1} << 32;
  void* hole = mmap(nullptr, kHole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  munmap(hole, kHole);
  EXPECT_THROW(backend().host_register(static_cast<std::byte*>(hole) + kHole / 2, page(), false), Error);
  backend().host_register(pages.data(), pages.size(), false);
  const DeviceBytes copy(device(), pages.size());
  stream().copy(copy.data(), pages.data(), pages.size(), CopyDirection::h2d);
  EXPECT_TRUE(
      same_bytes(std::vector<std::byte>(pages.size(), std::byte{0x5C}), download(copy.data(), copy.size())));
  backend().host_unregister(pages.data());
}

TEST_P(Contract, CopiesSpanAdjacentPiecesOfOneAllocation) {
  const DeviceBytes block(device(), 1 << 20);
  const auto bytes = random_bytes(block.size(), 7);
  upload(block.data(), bytes);
  upload(block.data() + 1000, std::span(bytes).first(77));
  auto expected = bytes;
  std::memcpy(expected.data() + 1000, bytes.data(), 77);
  EXPECT_TRUE(same_bytes(expected, download(block.data(), block.size())));
}

}  // namespace

}  // namespace penstock::testing
