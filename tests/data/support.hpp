#pragma once

#include "support/bytes.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/dataset.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace penstock::test {

using testing::random_bytes;

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::vector<std::byte> joined(std::vector<std::byte> head, const std::vector<std::byte>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

/// A .npy file's bytes.
inline std::vector<std::byte> npy(const std::string& descr, const std::string& shape,
                                  const std::vector<std::byte>& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  const std::string length = {static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  return joined(bytes_of(std::string("\x93NUMPY\x01", 7) + std::string(1, '\0') + length + header), data);
}

inline std::vector<std::uint64_t> random_indices(std::size_t count, std::uint64_t below, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::uint64_t> pick(0, below - 1);
  std::vector<std::uint64_t> indices(count);
  for (std::uint64_t& index : indices) index = pick(random);
  return indices;
}

/// Gathers over poison, so that bytes that were not written show.
inline std::vector<std::byte> gather(const Dataset& dataset, std::size_t field,
                                     std::span<const std::uint64_t> indices,
                                     StoreKind stores = StoreKind::cached) {
  std::vector<std::byte> result(indices.size() * dataset.sample_bytes(field), testing::kPoison);
  dataset.gather(field, indices, result, stores);
  return result;
}

/// Every sample of a field, in order.
inline std::vector<std::byte> read_all(const Dataset& dataset, std::size_t field) {
  std::vector<std::uint64_t> all(dataset.sample_count());
  std::iota(all.begin(), all.end(), 0);
  return gather(dataset, field, all);
}

inline std::vector<std::byte> pick(std::span<const std::byte> rows, std::size_t row_bytes,
                                   std::span<const std::uint64_t> indices) {
  std::vector<std::byte> result;
  for (const std::uint64_t index : indices) {
    const auto row = rows.subspan(index * row_bytes, row_bytes);
    result.insert(result.end(), row.begin(), row.end());
  }
  return result;
}

/// Expects `call` to throw exactly an E whose message contains every part.
template <typename E, typename Call>
void expect_error(Call&& call, const std::vector<std::string>& parts) {
  try {
    static_cast<void>(call());
  } catch (const E& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    return;
  } catch (const std::exception& other) {
    FAIL() << "another exception: " << other.what();
  }
  FAIL() << "nothing was thrown; expected: " << (parts.empty() ? "" : parts.front());
}

}  // namespace penstock::test
