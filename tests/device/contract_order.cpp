#include "device/contract_suite.hpp"

#include <penstock/core/permutation.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

namespace penstock::testing {

namespace {

constexpr std::uint64_t kEnd = std::uint64_t{1} << 63;

/// The indices by the contract, one position at a time.
std::vector<std::uint64_t> expected_indices(const OrderRequest& request) {
  std::vector<std::uint64_t> indices(request.run.count);
  for (std::uint64_t i = 0; i < request.run.count; ++i) {
    const std::uint64_t position = (request.run.first + i * request.run.stride) % request.run.size;
    indices[i] = request.run.order ? (*request.run.order)(position) : position;
  }
  return indices;
}

/// Computes the order into device memory and compares every index, and the bytes around them.
void expect_order(const Device& device, const Stream& stream, OrderRequest request) {
  constexpr std::size_t kMargin = 64;
  const std::size_t bytes = request.run.count * sizeof(std::uint64_t);
  const DeviceBytes target(device, bytes + 2 * kMargin);
  const PinnedBytes result(device, target.size());
  stream.fill(target.data(), 0xA5, target.size());
  request.indices = reinterpret_cast<std::uint64_t*>(target.data() + kMargin);
  stream.fill_order(request);
  stream.copy(result.data(), target.data(), target.size(), CopyDirection::d2h);
  stream.synchronize();
  std::vector<std::byte> expected(target.size(), std::byte{0xA5});
  const auto indices = expected_indices(request);
  if (bytes != 0) std::memcpy(expected.data() + kMargin, indices.data(), bytes);
  EXPECT_TRUE(same_bytes(expected, result.bytes()))
      << (request.run.order ? "shuffled" : "plain") << " order of " << request.run.size << ", "
      << request.run.count << " indices from " << request.run.first << " by " << request.run.stride;
}

TEST_P(Contract, OrderIsTheHostsForEverySize) {
  std::mt19937_64 random(900);
  std::vector<std::uint64_t> sizes{1, 2, 3, 63, 64, 65, 97, 1009, 65537, 1000003, 4294967291, 1000000000039};
  for (const unsigned bits : {7u, 16u, 31u, 32u, 33u, 47u, 61u}) {
    for (const std::uint64_t more : {-1, 0, 1}) sizes.push_back((std::uint64_t{1} << bits) + more);
  }
  sizes.push_back((std::uint64_t{1} << 62) - 1);
  sizes.push_back(std::uint64_t{1} << 62);
  for (const std::uint64_t size : sizes) {
    for (const bool shuffled : {true, false}) {
      OrderRequest request;
      if (shuffled) request.run.order.emplace(size, random(), random());
      request.run.size = size;
      request.run.first = random() % size;
      request.run.stride = 1 + random() % 5;
      request.run.count = 1 + random() % 600;
      expect_order(device(), stream(), request);
      // Past the end of the order, and in steps of about its size.
      request.run.first = random() % (kEnd / 2);
      request.run.count = 1 + random() % 100;
      request.run.stride = random() % std::min(2 * size, kEnd / 2 / request.run.count);
      expect_order(device(), stream(), request);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Contract, OrderOfAnyCountComesWhole) {
  const KeyedPermutation order(5000, 3, 4);
  for (const std::uint64_t count : {0u, 1u, 31u, 32u, 33u, 255u, 256u, 257u, 4999u, 5000u}) {
    expect_order(device(), stream(), {.run = {.order = order, .size = 5000, .count = count}});
  }
  // More indices than a GPU has threads, so that each thread computes several, once or often around the
  // order.
  for (const auto& [size, stride] : {std::pair{std::uint64_t{1009}, std::uint64_t{1}},
                                     {(std::uint64_t{1} << 18) + 1, 3},
                                     {(std::uint64_t{1} << 41) + 15, 1000000000000}}) {
    OrderRequest request{
        .run = {.order = std::nullopt, .size = size, .first = size / 2, .stride = stride, .count = 400000}};
    expect_order(device(), stream(), request);
    request.run.order.emplace(size, 5, 6);
    expect_order(device(), stream(), request);
  }
}

TEST_P(Contract, OrderIsComputedInTurnAndItsRequestIsCopied) {
  PinnedBytes indices(device(), 100 * sizeof(std::uint64_t));
  std::vector<std::uint64_t> expected;
  {
    Gate gate(device());
    gate.hold(stream());
    OrderRequest request{
        .run = {.order = KeyedPermutation(1000, 1, 2), .size = 1000, .first = 7, .count = 100}};
    request.indices = static_cast<std::uint64_t*>(backend().device_address(indices.data()));
    expected = expected_indices(request);
    stream().fill_order(request);
    request = {};
    EXPECT_FALSE(same_bytes(bytes_of(expected), indices.bytes()));
    gate.open();
    stream().synchronize();
  }
  EXPECT_TRUE(same_bytes(bytes_of(expected), indices.bytes()));
}

TEST_P(Contract, GatherTakesAnOrderThatTheDeviceComputed) {
  constexpr std::uint64_t kRows = 500;
  const auto rows = random_bytes(kRows * 20, 901);
  const DeviceBytes source(device(), rows.size());
  const DeviceBytes indices(device(), kRows * sizeof(std::uint64_t));
  const DeviceBytes result(device(), rows.size());
  upload(source.data(), rows);
  OrderRequest order{.run = {.order = KeyedPermutation(kRows, 8, 9), .size = kRows, .count = kRows}};
  order.indices = reinterpret_cast<std::uint64_t*>(indices.data());
  GatherRequest request;
  request.source = source.data();
  request.source_rows = kRows;
  request.row_elements = 20;
  request.indices = order.indices;
  request.count = kRows;
  request.destination = result.data();
  stream().fill_order(order);
  stream().gather(request);
  std::vector<std::byte> expected;
  for (const std::uint64_t index : expected_indices(order)) {
    const auto row = std::span(rows).subspan(index * 20, 20);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(same_bytes(expected, download(result.data(), result.size())));
}

TEST_P(Contract, OrderRefusesWhatItCannotDo) {
  const DeviceBytes block(device(), 4096);
  upload(block.data(), random_bytes(4096, 902));
  const auto before = download(block.data(), block.size());
  const OrderRequest good{.run = {.order = KeyedPermutation(100, 1, 1), .size = 100, .count = 4},
                          .indices = reinterpret_cast<std::uint64_t*>(block.data())};
  const auto refused = [&](auto change) {
    OrderRequest request = good;
    change(request);
    EXPECT_THROW(stream().fill_order(request), InvalidArgument);
  };
  refused([](OrderRequest& r) { r.indices = nullptr; });
  refused([&](OrderRequest& r) { r.indices = reinterpret_cast<std::uint64_t*>(block.data() + 4); });
  refused([](OrderRequest& r) { r.run.size = 99; });
  refused([](OrderRequest& r) { r.run.order.reset(), r.run.size = 0; });
  refused([](OrderRequest& r) { r.run.order.reset(), r.run.size = KeyedPermutation::kMaximumSize + 1; });
  refused([](OrderRequest& r) { r.run.first = kEnd - 4; });
  refused([](OrderRequest& r) { r.run.stride = kEnd / 4; });
  refused([](OrderRequest& r) { r.run.stride = kEnd / 2 + 1; });
  OrderRequest empty = good;
  empty.run.count = 0;
  stream().fill_order(empty);
  EXPECT_TRUE(same_bytes(before, download(block.data(), block.size())));
}

}  // namespace

}  // namespace penstock::testing
