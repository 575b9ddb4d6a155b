#pragma once

#include "data/support.hpp"

#include <penstock/core/dtype.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock::test {

/// A tensor to write to a .safetensors file.
struct Weight {
  std::string name;
  std::string type;
  Shape shape;
  std::vector<std::byte> data{};
};

/// Gives each tensor as many random bytes as its type and shape say.
inline void fill_randomly(std::vector<Weight>& weights, std::uint64_t seed) {
  static const std::map<char, std::size_t> bits{{'6', 64}, {'3', 32}, {'1', 16},
                                                {'8', 8},  {'4', 4},  {'B', 8}};
  for (Weight& weight : weights) {
    const char first_digit =
        weight.type == "BOOL" ? 'B' : weight.type[weight.type.find_first_of("0123456789")];
    weight.data = random_bytes(element_count(weight.shape) * bits.at(first_digit) / 8, ++seed);
  }
}

/// A .safetensors file's bytes. `length` stands at its begin in place of the header's, if it is not 0.
inline std::vector<std::byte> safetensors(const std::string& header, const std::vector<std::byte>& data,
                                          std::uint64_t length = 0) {
  std::vector<std::byte> file;
  for (int i = 0; i < 8; ++i) {
    file.push_back(static_cast<std::byte>((length == 0 ? header.size() : length) >> (8 * i)));
  }
  return joined(joined(std::move(file), bytes_of(header)), data);
}

/// The same of tensors, side by side in this order.
inline std::vector<std::byte> safetensors(const std::vector<Weight>& weights) {
  std::vector<std::string> entries;
  std::vector<std::byte> data;
  for (const Weight& weight : weights) {
    entries.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", weight.name,
                                  weight.type, fmt::join(weight.shape, ","), data.size(),
                                  data.size() + weight.data.size()));
    data = joined(std::move(data), weight.data);
  }
  return safetensors(fmt::format("{{{}}}", fmt::join(entries, ",")), data);
}

}  // namespace penstock::test
