#include "device/contract_suite.hpp"
#include "device/host/host_core.hpp"
#include "device/host/host_stream.hpp"
#include "support/threads.hpp"

#include <penstock/core/bytes.hpp>

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>

/// The host device beyond the contract: its strictness, its limits, its modelled link.
namespace penstock::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The name of the DeviceError that `call` throws.
template <typename Call>
std::string name_of_failure(Call&& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.name();
  }
  return "no failure";
}

TEST(HostBackend, KernelsAreRefusedPageableMemory) {
  const Device device = Device::open("host:memory=16MiB");
  const Stream stream = device.create_stream();
  DeviceBytes target(device, 4096);
  std::vector<std::byte> ordinary(4096);
  GatherRequest request;
  request.source = ordinary.data();
  request.source_rows = 4;
  request.row_elements = 16;
  request.count = 4;
  request.destination = target.data();
  EXPECT_THROW(device.backend().gather(request, stream.native()), DeviceError);
  request.source = target.data();
  request.head = ordinary.data();
  request.head_rows = 1;
  EXPECT_THROW(device.backend().gather(request, stream.native()), DeviceError);
  request.head_rows = 0;
  request.destination = ordinary.data();
  EXPECT_THROW(device.backend().gather(request, stream.native()), DeviceError);
  EXPECT_THROW(device.backend().fill(ordinary.data(), 0, 16, stream.native()), DeviceError);
  OrderRequest order;
  order.run.count = 1;
  order.indices = reinterpret_cast<std::uint64_t*>(ordinary.data());
  EXPECT_THROW(device.backend().fill_order(order, stream.native()), DeviceError);
  const SplitRequest good{.rows = target.data(),
                          .row_bytes = 16,
                          .count = 1,
                          .destination = target.data(),
                          .values = reinterpret_cast<const RowValue*>(target.data()),
                          .firsts = reinterpret_cast<const std::uint32_t*>(target.data()),
                          .value_count = 1};
  SplitRequest split = good;
  split.rows = ordinary.data();
  EXPECT_THROW(device.backend().split_rows(split, stream.native()), DeviceError);
  split = good;
  split.destination = ordinary.data();
  EXPECT_THROW(device.backend().split_rows(split, stream.native()), DeviceError);
  const CopyPiece piece{ordinary.data(), target.data(), 16};
  EXPECT_THROW(device.backend().copy_pieces(&piece, 1, stream.native()), DeviceError);
  std::uint32_t word = 1;
  EXPECT_THROW(device.backend().stream_wait_value(stream.native(), &word, 1), DeviceError);
}

TEST(HostBackend, KernelsMustStayInside) {
  const Device device = Device::open("host:memory=16MiB");
  const Stream stream = device.create_stream();
  Backend& backend = device.backend();
  constexpr std::size_t kRoom = 1024;
  DeviceBytes block(device, kRoom);
  DeviceBytes target(device, kRoom);
  const auto refused = [&](auto&& call) { EXPECT_EQ(name_of_failure(call), "PENSTOCK_INVALID_VALUE"); };
  backend.fill(block.data() + 24, 0, kRoom - 24, stream.native());
  refused([&] { backend.fill(block.data() + 24, 0, kRoom - 23, stream.native()); });
  // Rows of 64 bytes to float32: two fill half of the target, and eight of them are at the end of the block.
  const GatherRequest good{.source = block.data() + kRoom - 512,
                           .source_rows = 8,
                           .row_elements = 64,
                           .count = 2,
                           .destination = target.data() + 512,
                           .from = DType::uint8,
                           .to = DType::float32,
                           .channels = 8};
  backend.gather(good, stream.native());
  const auto gather_refused = [&](auto change) {
    GatherRequest request = good;
    change(request);
    refused([&] { backend.gather(request, stream.native()); });
  };
  const auto end = [&](std::size_t bytes) { return block.data() + kRoom - bytes; };
  gather_refused([&](GatherRequest& r) { r.source = end(511); });
  gather_refused([&](GatherRequest& r) { r.row_stride_bytes = 65; });
  gather_refused([&](GatherRequest& r) { r.head = end(64), r.head_rows = 2; });
  gather_refused([&](GatherRequest& r) { r.count = 3; });
  gather_refused([&](GatherRequest& r) { r.indices = reinterpret_cast<std::uint64_t*>(end(8)); });
  gather_refused([&](GatherRequest& r) { r.scale = reinterpret_cast<const float*>(end(28)); });
  gather_refused([&](GatherRequest& r) { r.shift = reinterpret_cast<const float*>(end(28)); });
  const OrderRequest order{.run = {.order = std::nullopt, .size = 10, .count = 4},
                           .indices = reinterpret_cast<std::uint64_t*>(end(24))};
  refused([&] { backend.fill_order(order, stream.native()); });
  auto* const sums = reinterpret_cast<HashSum*>(block.data());
  const std::size_t sum_bytes = HashRequest::sum_count(64) * sizeof(HashSum);
  refused([&] { backend.hash({.source = end(48), .bytes = 64, .sums = sums}, stream.native()); });
  refused([&] {
    auto* const past = reinterpret_cast<HashSum*>(end(sum_bytes - 16));
    backend.hash({.source = block.data(), .bytes = 64, .sums = past}, stream.native());
  });
  const SplitRequest split{.rows = end(512),
                           .row_bytes = 512,
                           .count = 1,
                           .destination = target.data(),
                           .values = reinterpret_cast<const RowValue*>(end(2 * sizeof(RowValue))),
                           .firsts = reinterpret_cast<const std::uint32_t*>(end(12)),
                           .value_count = 2};
  const auto split_refused = [&](auto change) {
    SplitRequest request = split;
    change(request);
    refused([&] { backend.split_rows(request, stream.native()); });
  };
  split_refused([](SplitRequest& r) { r.count = 2; });
  split_refused([](SplitRequest& r) { r.value_count = 3; });
  split_refused([&](SplitRequest& r) { r.firsts = reinterpret_cast<const std::uint32_t*>(end(8)); });
  PinnedBytes table(device, sizeof(CopyPiece));
  refused([&] { backend.copy_pieces(table.as<CopyPiece>(), 2, stream.native()); });
  PinnedBytes word(device, 6);
  refused([&] { backend.stream_wait_value(stream.native(), word.as<std::uint32_t>() + 1, 0); });
  auto* const misaligned = reinterpret_cast<std::uint32_t*>(word.data() + 1);
  refused([&] { backend.stream_wait_value(stream.native(), misaligned, 0); });
}

TEST(HostBackend, MemorySharesNoPageWithTheProgramsOwn) {
  // If a page held both, locking the program's part would make device memory look pinned.
  const Device device = Device::open("host:memory=16MiB");
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < 20; ++i) {
    DeviceBytes block(device, 100);
    PinnedBytes pinned(device, 100);
    const auto own = std::make_unique<std::byte[]>(100);
    const auto page_of = [&](const void* data) { return reinterpret_cast<std::uintptr_t>(data) / page; };
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % page, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned.data()) % page, 0u);
    EXPECT_NE(page_of(own.get()), page_of(block.data()));
    EXPECT_NE(page_of(own.get()), page_of(pinned.data()));
  }
}

TEST(HostBackend, CopiesMustStayInsideAndGoTheRightWay) {
  const Device device = Device::open("host:memory=16MiB");
  const Stream stream = device.create_stream();
  DeviceBytes block(device, 1000);
  DeviceBytes other(device, 1000);
  PinnedBytes pinned(device, 2000);
  Backend& backend = device.backend();
  EXPECT_THROW(backend.copy(block.data(), pinned.data(), 1001, CopyDirection::h2d, stream.native()),
               DeviceError);
  EXPECT_THROW(backend.copy(block.data() + 900, pinned.data(), 101, CopyDirection::h2d, stream.native()),
               DeviceError);
  EXPECT_THROW(backend.copy(pinned.data() + 1500, block.data(), 501, CopyDirection::d2h, stream.native()),
               DeviceError);
  EXPECT_THROW(backend.copy(pinned.data(), block.data(), 10, CopyDirection::h2d, stream.native()),
               DeviceError);
  EXPECT_THROW(backend.copy(block.data(), pinned.data(), 10, CopyDirection::d2h, stream.native()),
               DeviceError);
  EXPECT_THROW(backend.copy(block.data(), other.data(), 10, CopyDirection::h2d, stream.native()),
               DeviceError);
  std::vector<std::byte> ordinary(10);
  EXPECT_THROW(backend.copy(block.data(), ordinary.data(), 10, CopyDirection::d2d, stream.native()),
               DeviceError);
}

TEST(HostBackend, BadPieceIsAFailureThatComesToLightLater) {
  constexpr std::size_t kBytes = 64;
  for (const char* bad :
       {"pageable source", "pageable target", "source that ends", "target that ends", "read-only target"}) {
    // Late, so that no work is done before somebody waits.
    const Device device = Device::open("host:memory=16MiB,late=1");
    Backend& backend = device.backend();
    const Stream stream = device.create_stream();
    const DeviceBytes block(device, kBytes);
    const DeviceBytes target(device, kBytes);
    const PinnedBytes table(device, 2 * sizeof(CopyPiece));
    std::vector<std::byte> ordinary(kBytes);
    void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    backend.host_register(page, 4096, true);
    CopyPiece piece{block.data(), target.data(), kBytes};
    const std::string_view kind(bad);
    if (kind == "pageable source") piece.source = ordinary.data();
    if (kind == "pageable target") piece.destination = ordinary.data();
    if (kind == "source that ends") piece.source = block.data() + 1;
    if (kind == "target that ends") piece.destination = target.data() + 1;
    if (kind == "read-only target") piece.destination = page;
    table.as<CopyPiece>()[0] = {block.data(), target.data(), 0};
    table.as<CopyPiece>()[1] = piece;
    backend.copy_pieces(table.as<CopyPiece>(), 2, stream.native());
    Event done = device.create_event();
    done.record(stream);
    if (kind == "pageable source") {
      EXPECT_EQ(name_of_failure([&] { done.synchronize(); }), "PENSTOCK_ILLEGAL_ADDRESS");
    }
    EXPECT_EQ(name_of_failure([&] { stream.synchronize(); }), "PENSTOCK_ILLEGAL_ADDRESS") << bad;
    EXPECT_EQ(name_of_failure([&] { backend.fill(target.data(), 0, 1, stream.native()); }),
              "PENSTOCK_ILLEGAL_ADDRESS");
    backend.host_unregister(page);
    munmap(page, 4096);
  }
}

TEST(HostBackend, WrongTablesOfASplitAreAFailureThatComesToLightLater) {
  struct Tables {
    RowValue values[3] = {{.row_offset = 15}, {.row_offset = 256}, {.row_offset = 257}};
    std::uint32_t firsts[3] = {0, 1, 2};
  };
  struct Wrong {
    const char* name;
    std::function<void(Tables&)> change;
  };
  constexpr std::uint64_t kRows = 4;
  constexpr std::uint64_t kColumn = 64;
  auto* const page = static_cast<std::byte*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(page, MAP_FAILED);
  const std::byte* target_data = nullptr;
  const auto offset_of = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(target_data);
  };
  std::byte ordinary{};
  const Wrong wrongs[] = {
      {"nothing", [](Tables&) {}},
      {"firsts that descend", [](Tables& t) { t.firsts[0] = 2; }},
      {"more values than there are", [](Tables& t) { t.firsts[2] = 3; }},
      {"a value of an earlier segment", [](Tables& t) { t.values[1].row_offset = 255; }},
      {"a value of a later segment", [](Tables& t) { t.values[0].row_offset = 256; }},
      {"a value past the row", [](Tables& t) { t.values[1].row_offset = 272; }},
      {"a value that ends past the row",
       [](Tables& t) { t.values[1] = {.row_offset = 268, .from = DType::int64, .to = DType::int64}; }},
      {"a column past the destination", [](Tables& t) { t.values[0].destination = kColumn; }},
      {"a column that ends past it", [](Tables& t) { t.values[0].destination_stride = 22; }},
      {"a last element that ends past it",
       [](Tables& t) { t.values[0] = {.destination = kColumn - 2, .to = DType::float32}; }},
      {"a pageable column", [&](Tables& t) { t.values[0].destination = offset_of(&ordinary); }},
      {"a read-only column", [&](Tables& t) { t.values[0].destination = offset_of(page); }}};
  for (const Wrong& wrong : wrongs) {
    // Late, so that no work is done before somebody waits.
    const Device device = Device::open("host:memory=16MiB,late=1");
    Backend& backend = device.backend();
    backend.host_register(page, 4096, true);
    const Stream stream = device.create_stream();
    const DeviceBytes rows(device, kRows * 272);
    const DeviceBytes target(device, kColumn);
    target_data = target.data();
    const PinnedBytes memory(device, sizeof(Tables));
    auto* const tables = new (memory.data()) Tables;
    wrong.change(*tables);
    backend.split_rows({.rows = rows.data(),
                        .row_bytes = 272,
                        .count = kRows,
                        .destination = target.data(),
                        .values = tables->values,
                        .firsts = tables->firsts,
                        .value_count = 2},
                       stream.native());
    EXPECT_EQ(name_of_failure([&] { stream.synchronize(); }),
              wrong.name == std::string_view("nothing") ? "no failure" : "PENSTOCK_ILLEGAL_ADDRESS")
        << wrong.name;
    backend.host_unregister(page);
  }
  munmap(page, 4096);
}

TEST(HostBackend, BudgetIsExactAndComesBack) {
  const Device device = Device::open("host:memory=1MiB");
  Backend& backend = device.backend();
  void* const most = backend.device_allocate(kMiB - 100);
  EXPECT_EQ(device.memory().free, 100u);
  try {
    backend.device_allocate(101);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), 101u);
    EXPECT_EQ(error.used(), kMiB - 100);
    EXPECT_EQ(error.free(), 100u);
  }
  void* const rest = backend.device_allocate(100);
  backend.device_free(most);
  backend.device_free(rest);
  EXPECT_EQ(device.memory().free, kMiB);
  EXPECT_THROW(backend.device_allocate(~std::size_t{0}), OutOfMemory);
}

TEST(HostBackend, LockLimitIsCountedAndComesBack) {
  const Device device = Device::open("host:memory=1MiB,lock=64KiB");
  Backend& backend = device.backend();
  constexpr std::size_t kPages = 128 * kKiB;
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_THROW(backend.host_register(pages, kPages, false), Unsupported);
  backend.host_register(pages, 64 * kKiB, false);
  try {
    backend.host_register(pages + 64 * kKiB, 4096, false);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("ulimit -l"));
  }
  // The driver's own allocator is not under that limit.
  backend.host_free(backend.host_allocate(kPages));
  backend.host_unregister(pages);
  backend.host_register(pages + 64 * kKiB, 64 * kKiB, false);
  backend.host_unregister(pages + 64 * kKiB);
  munmap(pages, kPages);
}

TEST(HostBackend, RegistrationsWithAHoleAreRefused) {
  const Device device = Device::open("host:memory=1MiB");
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 64 * kKiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  munmap(pages + 16 * kKiB, 16 * kKiB);
  EXPECT_THROW(device.backend().host_register(pages, 64 * kKiB, false), InvalidArgument);
  device.backend().host_register(pages, 16 * kKiB, false);
  device.backend().host_unregister(pages);
  mprotect(pages + 32 * kKiB, 16 * kKiB, PROT_NONE);
  EXPECT_THROW(device.backend().host_register(pages + 32 * kKiB, 32 * kKiB, true), InvalidArgument);
  munmap(pages, 64 * kKiB);
}

TEST(HostBackend, ReadOnlyRegistrationsAreNotWritten) {
  const Device device = Device::open("host:memory=1MiB");
  const Stream stream = device.create_stream();
  DeviceBytes block(device, 4096);
  auto* const page = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  device.backend().host_register(page, 8192, true);
  EXPECT_THROW(device.backend().copy(page, block.data(), 16, CopyDirection::d2h, stream.native()),
               DeviceError);
  EXPECT_THROW(device.backend().fill(page, 0, 16, stream.native()), DeviceError);
  device.backend().copy(block.data(), page, 4096, CopyDirection::h2d, stream.native());
  stream.synchronize();
  device.backend().host_unregister(page);
  munmap(page, 8192);
}

TEST(HostBackend, CopiesMaySpanAdjacentRegistrations) {
  const Device device = Device::open("host:memory=1MiB");
  const Stream stream = device.create_stream();
  DeviceBytes block(device, 8192);
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  const auto bytes = random_bytes(8192, 1);
  std::memcpy(pages, bytes.data(), bytes.size());
  device.backend().host_register(pages, 4096, false);
  device.backend().host_register(pages + 4096, 4096, false);
  device.backend().copy(block.data(), pages, 8192, CopyDirection::h2d, stream.native());
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, {block.data(), 8192}));
  device.backend().host_unregister(pages + 4096);
  device.backend().host_register(pages + 4096, 4096, true);
  const auto copied = [&](std::byte* to, std::byte* from, CopyDirection direction) {
    return name_of_failure([&] { device.backend().copy(to, from, 8192, direction, stream.native()); });
  };
  EXPECT_EQ(copied(pages, block.data(), CopyDirection::d2h), "PENSTOCK_INVALID_VALUE") << "half is read-only";
  device.backend().host_unregister(pages + 4096);
  EXPECT_EQ(copied(block.data(), pages, CopyDirection::h2d), "PENSTOCK_INVALID_VALUE") << "half is pageable";
  device.backend().host_register(pages + 8192, 4096, false);
  EXPECT_EQ(copied(block.data(), pages, CopyDirection::h2d), "PENSTOCK_INVALID_VALUE") << "there is a gap";
  device.backend().host_unregister(pages + 8192);
  device.backend().host_unregister(pages);
  munmap(pages, 3 * 4096);
}

TEST(HostBackend, QueueGrowsAsFarAsNeeded) {
  const Device device = Device::open("host:memory=1MiB");
  const Stream stream = device.create_stream();
  constexpr std::size_t kCopies = 5000;
  PinnedBytes source(device, kCopies * 4);
  PinnedBytes result(device, kCopies * 4);
  DeviceBytes slot(device, 4);
  const auto bytes = random_bytes(source.size(), 2);
  source.assign(bytes);
  for (int round = 0; round < 3; ++round) {
    std::memset(result.data(), 0xA5, result.size());
    Gate gate(device);
    gate.hold(stream);
    for (std::size_t i = 0; i < kCopies; ++i) {
      device.backend().copy(slot.data(), source.data() + 4 * i, 4, CopyDirection::h2d, stream.native());
      device.backend().copy(result.data() + 4 * i, slot.data(), 4, CopyDirection::d2h, stream.native());
    }
    gate.open();
    stream.synchronize();
    ASSERT_TRUE(same_bytes(bytes, result.bytes())) << round;
  }
}

TEST(HostBackend, ModelledLinkTakesItsTimeAndIsSharedByStreams) {
  // 0.1 GB/s and 2 copies of 4 MB: never less than 80 ms, whichever streams they are on.
  const Device device = Device::open("host:memory=64MiB,link=0.1,latency=1000");
  const Stream first = device.create_stream();
  const Stream second = device.create_stream();
  constexpr std::size_t kBytes = 4000000;
  PinnedBytes pinned(device, 2 * kBytes);
  DeviceBytes block(device, 2 * kBytes);
  const auto begin = Clock::now();
  device.backend().copy(block.data(), pinned.data(), kBytes, CopyDirection::h2d, first.native());
  device.backend().copy(block.data() + kBytes, pinned.data() + kBytes, kBytes, CopyDirection::h2d,
                        second.native());
  first.synchronize();
  second.synchronize();
  EXPECT_GE(seconds_since(begin), 0.082);
}

TEST(HostBackend, ModelledLinkChargesPageableAndZeroCopyToo) {
  const Device device = Device::open("host:memory=64MiB,link=0.1");
  const Stream stream = device.create_stream();
  constexpr std::size_t kBytes = 2000000;
  std::vector<std::byte> ordinary(kBytes);
  PinnedBytes pinned(device, kBytes);
  DeviceBytes block(device, kBytes);
  auto begin = Clock::now();
  device.backend().copy(block.data(), ordinary.data(), kBytes, CopyDirection::h2d, stream.native());
  EXPECT_GE(seconds_since(begin), 0.02);
  GatherRequest request;
  request.source = pinned.data();
  request.source_rows = 2;
  request.row_elements = kBytes / 2;
  request.count = 2;
  request.destination = block.data();
  begin = Clock::now();
  device.backend().gather(request, stream.native());
  stream.synchronize();
  EXPECT_GE(seconds_since(begin), 0.02);
  request.source = block.data();
  request.head = pinned.data();
  request.head_rows = 1;
  begin = Clock::now();
  device.backend().gather(request, stream.native());
  stream.synchronize();
  EXPECT_GE(seconds_since(begin), 0.01);
  PinnedBytes tables(device, 64);
  *tables.as<RowValue>() = {};
  auto* const firsts = reinterpret_cast<std::uint32_t*>(tables.data() + 32);
  firsts[0] = 0;
  firsts[1] = 1;
  begin = Clock::now();
  device.backend().split_rows({.rows = pinned.data(),
                               .row_bytes = 16,
                               .count = kBytes / 16,
                               .destination = block.data(),
                               .values = tables.as<RowValue>(),
                               .firsts = firsts,
                               .value_count = 1},
                              stream.native());
  stream.synchronize();
  EXPECT_GE(seconds_since(begin), 0.02);
  PinnedBytes table(device, sizeof(CopyPiece));
  *table.as<CopyPiece>() = {block.data(), pinned.data(), kBytes};
  begin = Clock::now();
  device.backend().copy_pieces(table.as<CopyPiece>(), 1, stream.native());
  stream.synchronize();
  EXPECT_GE(seconds_since(begin), 0.02);
}

TEST(HostBackend, FreeingWaitsForTheWorkThatUsesIt) {
  const Device device = Device::open("host:memory=64MiB,link=1");
  const Stream stream = device.create_stream();
  constexpr std::size_t kBytes = 3000000;
  const auto bytes = random_bytes(kBytes, 3);
  PinnedBytes result(device, kBytes);
  {
    PinnedBytes source(device, kBytes);
    DeviceBytes middle(device, kBytes);
    source.assign(bytes);
    device.backend().copy(middle.data(), source.data(), kBytes, CopyDirection::h2d, stream.native());
    device.backend().copy(result.data(), middle.data(), kBytes, CopyDirection::d2h, stream.native());
  }
  EXPECT_TRUE(stream.query());
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST(HostBackend, EachWayOfFreeingWaitsForTheWorkUnderWay) {
  const Device device = Device::open("host:memory=1MiB,late=1");
  const Stream stream = device.create_stream();
  Backend& backend = device.backend();
  void* const block = backend.device_allocate(4096);
  void* const locked = backend.host_allocate(4096);
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  backend.host_register(page, 4096, false);
  backend.copy(block, page, 4096, CopyDirection::h2d, stream.native());
  backend.host_unregister(page);
  EXPECT_TRUE(stream.query());
  backend.copy(block, locked, 4096, CopyDirection::h2d, stream.native());
  backend.host_free(locked);
  EXPECT_TRUE(stream.query());
  backend.fill(block, 0, 4096, stream.native());
  backend.device_free(block);
  EXPECT_TRUE(stream.query());
  munmap(page, 4096);
}

TEST(HostBackend, StreamsThatEndedAreForgotten) {
  const auto core = std::make_shared<HostCore>(HostOptions{}, std::size_t{1} << 20);
  const auto any_lives = [&] {
    bool any = false;
    core->for_each_live([&](const std::shared_ptr<HostStream>&) { any = true; });
    return any;
  };
  for (int i = 0; i < 4; ++i) {
    HostStream::start(core)->enqueue(EndWork{});
    while (any_lives()) std::this_thread::yield();
    EXPECT_EQ(core->streams.size(), 1u);
  }
}

TEST(HostBackend, NothingIsDoneBehindAGateThatWasGivenUp) {
  const auto core = std::make_shared<HostCore>(HostOptions{}, std::size_t{1} << 20);
  std::uint32_t word = 0;
  std::uint64_t target = 7;
  const std::uint64_t source = 1;
  auto* const locked = static_cast<CopyPiece*>(core->memory.host_allocate(2 * sizeof(CopyPiece)));
  locked[0] = {locked, locked + 1, sizeof(CopyPiece)};
  locked[1] = {};
  const GatherRequest gather{
      .source = &source, .source_rows = 1, .row_elements = 8, .count = 1, .destination = &target};
  const OrderRequest order{.run = {.order = std::nullopt, .size = 9, .first = 1, .count = 1},
                           .indices = &target};
  const RowValue value{.from = DType::uint64, .to = DType::uint64};
  const std::uint32_t firsts[] = {0, 1};
  alignas(16) const std::uint64_t row[] = {1, 1};
  auto* const column = static_cast<std::uint64_t*>(core->memory.device_allocate(8));
  *column = 7;
  const SplitRequest split{.rows = row,
                           .row_bytes = 16,
                           .count = 1,
                           .destination = column,
                           .values = &value,
                           .firsts = firsts,
                           .value_count = 1};
  const auto stream = HostStream::start(core);
  stream->enqueue(WaitValueWork{&word, 1});
  stream->enqueue(CopyWork{&target, &source, 8, CopyDirection::h2d, Wires{}, nullptr});
  stream->enqueue(FillWork{&target, 8, 0});
  stream->enqueue(PiecesWork{locked, 1});
  stream->enqueue(GatherWork{gather, false, false});
  stream->enqueue(SplitWork{split, false});
  stream->enqueue(OrderWork{order});
  const std::uint64_t last = stream->enqueue(EndWork{});
  core->closing.store(true);
  stream->wait(last);
  EXPECT_EQ(target, 7u);
  EXPECT_EQ(locked[1].bytes, 0u);
  EXPECT_EQ(*column, 7u);
}

TEST(HostBackend, ClosingTheDeviceEndsTheThreadOfItsDefaultStream) {
  const StartedThreads threads;
  {
    const Device device = Device::open("host:memory=1MiB");
    device.backend().stream_synchronize(nullptr);
    EXPECT_EQ(threads.get().size(), 1u);
  }
  EXPECT_TRUE(comes_true([&] { return threads.get().empty(); }));
}

TEST(HostBackend, ClosingTheDeviceLeavesRegisteredMemoryAlone) {
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  Device::open("host:memory=1MiB").backend().host_register(page, 4096, false);
  std::memset(page, 1, 4096);
  munmap(page, 4096);
}

TEST(HostBackend, FreeingWhatIsNotThereIsNothing) {
  const Device device = Device::open("host:memory=1MiB");
  Backend& backend = device.backend();
  const DeviceBytes block(device, 8192);
  const PinnedBytes pinned(device, 8192);
  auto* const page = static_cast<std::byte*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(page, MAP_FAILED);
  backend.host_register(page, 8192, false);
  int own = 0;
  const auto free_wrongly = [&](void* data) {
    if (data != block.data()) backend.device_free(data);
    if (data != pinned.data()) backend.host_free(data);
    if (data != page) backend.host_unregister(data);
  };
  for (std::byte* const data : {block.data(), pinned.data(), page}) {
    free_wrongly(data);
    free_wrongly(data + 4096);
  }
  free_wrongly(&own);
  EXPECT_EQ(device.memory().free, kMiB - 8192);
  EXPECT_EQ(backend.kind_of(block.data()), MemoryKind::device);
  EXPECT_EQ(backend.kind_of(pinned.data()), MemoryKind::pinned);
  EXPECT_EQ(backend.kind_of(page), MemoryKind::pinned);
  backend.host_unregister(page);
  EXPECT_EQ(backend.kind_of(page), MemoryKind::pageable);
  munmap(page, 8192);
}

TEST(HostBackend, ClosingTheDeviceGivesUpAGateNobodyCanOpen) {
  const StartedThreads threads;
  std::weak_ptr<Backend> watched;
  {
    const Device device = Device::open("host:memory=1MiB");
    watched = device.shared_backend();
    const Stream stream = device.create_stream();
    auto* const word = static_cast<std::uint32_t*>(device.backend().host_allocate(4));
    std::atomic_ref(*word).store(0);
    device.backend().stream_wait_value(stream.native(), word, 1);
    device.backend().stream_occupy(stream.native(), 1000);
    EXPECT_EQ(threads.get().size(), 1u);
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(comes_true([&] { return threads.get().empty(); }));
}

TEST(HostBackend, ClosingALateDeviceFreesWhatItsWorkKept) {
  std::weak_ptr<HostCore> watched;
  {
    const Device device = Device::open("host:memory=1MiB,late=1");
    watched = static_cast<HostCore*>(device.backend().context())->weak_from_this();
    const DeviceBytes block(device, 64);
    const Stream stream = device.create_stream();
    stream.fill(block.data(), 1, 64);
    stream.synchronize();
  }
  EXPECT_TRUE(comes_true([&] { return watched.expired(); }));
}

TEST(HostBackend, RandomProgramsGiveTheBytesOfTheirOrder) {
  for (const char* spec : {"host:memory=16MiB", "host:memory=16MiB,late=1"}) {
    const Device device = Device::open(spec);
    constexpr std::size_t kSlots = 6;
    constexpr std::size_t kBytes = 3000;
    constexpr int kStreams = 3;
    std::vector<Stream> streams;
    std::vector<Event> used;
    std::vector<bool> recorded(kSlots, false);
    for (int i = 0; i < kStreams; ++i) streams.push_back(device.create_stream());
    for (std::size_t i = 0; i < kSlots; ++i) used.push_back(device.create_event());
    DeviceBytes slots(device, kSlots * kBytes);
    PinnedBytes inputs(device, 64 * kBytes);
    PinnedBytes result(device, kSlots * kBytes);
    inputs.assign(random_bytes(inputs.size(), 4));
    std::vector<std::byte> expected(kSlots * kBytes, std::byte{0});
    device.backend().fill(slots.data(), 0, slots.size(), streams[0].native());
    streams[0].synchronize();
    std::mt19937 random(5);
    for (int step = 0; step < 400; ++step) {
      Stream& stream = streams[random() % kStreams];
      const std::size_t to = random() % kSlots;
      const std::size_t from = random() % kSlots;
      stream.wait(used[to]);
      stream.wait(used[from]);
      std::byte* const target = slots.data() + to * kBytes;
      switch (random() % 3) {
        case 0: {
          const std::size_t input = random() % 64 * kBytes;
          device.backend().copy(target, inputs.data() + input, kBytes, CopyDirection::h2d, stream.native());
          std::memcpy(expected.data() + to * kBytes, inputs.data() + input, kBytes);
          break;
        }
        case 1:
          if (to != from) {
            device.backend().copy(target, slots.data() + from * kBytes, kBytes, CopyDirection::d2d,
                                  stream.native());
            std::memcpy(expected.data() + to * kBytes, expected.data() + from * kBytes, kBytes);
          }
          break;
        default:
          device.backend().fill(target, static_cast<std::uint8_t>(step), kBytes, stream.native());
          std::memset(expected.data() + to * kBytes, static_cast<std::uint8_t>(step), kBytes);
      }
      used[to].record(stream);
      used[from].record(stream);
      if (random() % 8 == 0) stream.synchronize();
    }
    for (const Event& event : used) streams[0].wait(event);
    device.backend().copy(result.data(), slots.data(), slots.size(), CopyDirection::d2h, streams[0].native());
    streams[0].synchronize();
    EXPECT_TRUE(same_bytes(expected, result.bytes())) << spec;
  }
}

}  // namespace
}  // namespace penstock::testing
