#include "decode/shared/picture_decoder.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

// The decoder either throws PictureError, or writes the view.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static penstock::PictureDecoder decoder({}, 1 << 16);
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const penstock::PictureSize stored = decoder.size(file);
    if (stored.width < 1 || stored.height < 1 || stored.width * stored.height > 1 << 16) std::abort();
    const penstock::PictureRectangle crop{stored.width / 3, stored.height / 3, 1 + stored.width / 2,
                                          1 + stored.height / 2};
    std::array<std::byte, 3 * 8 * 8> target;
    decoder.decode(file, {crop, {8, 7}, {-1, 1, 8, 8}, true, false}, target);
  } catch (const penstock::PictureError&) {
  }
  return 0;
}
