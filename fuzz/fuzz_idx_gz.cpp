#include "data/idx.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

// Unpacking either throws Error, or gives exactly the bytes that the header announces. It never allocates
// more memory than the packed bytes can hold.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::uint8_t> left(data, size);
  auto source = [&](std::span<std::byte> destination) {
    const std::size_t count = std::min(left.size(), destination.size());
    if (count > 0) std::memcpy(destination.data(), left.data(), count);
    left = left.subspan(count);
    return count;
  };
  try {
    const penstock::IdxData unpacked = penstock::unpack_idx(source, size, "fuzz.gz");
    if (unpacked.pages.bytes().size() != unpacked.header.data_bytes) std::abort();
    if (unpacked.header.data_bytes > (size + 1) * penstock::kDeflateMaximumRatio) std::abort();
  } catch (const penstock::Error&) {
  }
  return 0;
}
