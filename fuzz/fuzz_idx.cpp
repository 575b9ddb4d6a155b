#include "data/idx.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <span>

// The parser either throws Error, or describes an array whose size is that of its shape.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto header =
        penstock::parse_idx_header(bytes.first(std::min(size, penstock::kIdxHeadBytes)), "fuzz");
    const std::size_t array = penstock::element_count(header.shape) * penstock::dtype_bytes(header.dtype);
    if (header.shape.empty() || array == 0 || header.data_bytes != array) std::abort();
    if (header.data_offset > size || header.data_offset != 4 + 4 * header.shape.size()) std::abort();
  } catch (const penstock::Error&) {
  }
  return 0;
}
