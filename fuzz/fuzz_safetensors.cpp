#include "data/safetensors.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

// The parser either throws Error, or describes tensors that fill the file after its header exactly.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    const std::size_t count =
        std::min<std::uint64_t>(size - std::min<std::uint64_t>(size, offset), destination.size());
    if (count > 0) std::memcpy(destination.data(), data + offset, count);
    return count;
  };
  try {
    std::uint64_t first = size;
    std::uint64_t bytes = 0;
    const penstock::SafetensorsHeader header =
        penstock::read_safetensors_header(read, size, "fuzz.safetensors");
    for (const auto& tensor : header.tensors) {
      const auto type = penstock::parse_safetensors_type(tensor.type);
      if (type && penstock::element_count(tensor.shape) * type->bits != tensor.bytes * 8) std::abort();
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
      first = std::min(first, tensor.offset);
      bytes += tensor.bytes;
    }
    if (first + bytes != size) std::abort();
  } catch (const penstock::Error&) {
  }
  return 0;
}
