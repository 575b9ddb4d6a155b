#include "data/deflate.hpp"
#include "data/npz.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

// The directory either throws Error, or describes members within the archive; each of those either throws
// Error, or gives exactly the bytes that its header announces, and no more than its packed bytes can stand
// for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    const std::size_t count =
        std::min<std::uint64_t>(size - std::min<std::uint64_t>(size, offset), destination.size());
    if (count > 0) std::memcpy(destination.data(), data + offset, count);
    return count;
  };
  try {
    for (const penstock::ZipMember& member : penstock::read_zip_directory(read, size, "fuzz.npz")) {
      if (member.offset > size || member.packed_bytes > size - member.offset) std::abort();
      if (member.bytes > (member.packed_bytes + 1) * penstock::kDeflateMaximumRatio) std::abort();
      try {
        const penstock::NpyArray array = penstock::read_npy_member(read, member, "fuzz.npz");
        if (array.header.data_offset + array.pages.bytes().size() != member.bytes) std::abort();
      } catch (const penstock::Error&) {
      }
    }
  } catch (const penstock::Error&) {
  }
  return 0;
}
