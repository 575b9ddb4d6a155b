#pragma once

#include "device/cuda/cuda_context.hpp"
#include "device/cuda/kernels.hpp"

#include <penstock/device/backend.hpp>
#include <penstock/device/jpeg_decoder.hpp>

#include <memory>

namespace penstock::cuda {

/// A decoder by nvJPEG: by its hardware engines if the GPU has them, otherwise by its kernels. The arguments
/// outlive it. Throws Unsupported if no library can be used.
[[nodiscard]] std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(Backend& backend,
                                                               const PrimaryContext& context,
                                                               const Kernels& kernels,
                                                               const JpegDecoderOptions& options);

}  // namespace penstock::cuda
