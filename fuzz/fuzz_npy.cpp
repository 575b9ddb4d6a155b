#include "data/npy_header.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <span>

// The parser either throws Error, or describes an array that fills the file exactly.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto header =
        penstock::parse_npy_header(bytes.first(std::min(size, penstock::kNpyHeadBytes)), size, "fuzz.npy");
    const std::size_t array = penstock::element_count(header.shape) * penstock::dtype_bytes(header.dtype);
    if (header.shape.empty() || array == 0 || header.data_offset + array != size) std::abort();
  } catch (const penstock::Error&) {
  }
  return 0;
}
