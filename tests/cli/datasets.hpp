#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace penstock::testing {

template <typename T>
std::vector<T> random_values(std::size_t count, std::uint32_t seed, T most) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random() % (static_cast<std::uint64_t>(most) + 1));
  return values;
}

/// A .npy file of version 1. `type` is NumPy's word, such as "|u1".
template <typename T>
void write_npy(const std::filesystem::path& file, const std::string& type, const Shape& shape,
               const std::vector<T>& values) {
  std::string extents;
  for (const std::size_t extent : shape) extents += std::to_string(extent) + ", ";
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + extents + "), }";
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::ofstream stream(file, std::ios::binary);
  stream << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
  stream.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(T)));
}

}  // namespace penstock::testing
