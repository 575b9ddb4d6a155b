#pragma once

#include "decode/shared/picture_decoder.hpp"

#include <cstddef>
#include <span>

namespace penstock {

/// Makes the changes of `view` in its rendered `pixels`, one after the other.
void change_pixels(const PictureView& view, PixelLayout layout, std::span<std::byte> pixels) noexcept;

}  // namespace penstock
