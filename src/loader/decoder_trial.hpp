#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/pictures.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>

namespace penstock {

/// What a decoder is asked for, of a sample that was read.
[[nodiscard]] JpegToRender to_render(const JpegSample& jpeg, std::byte* destination);

/// Pictures per second.
struct DecoderRates {
  double host = 0;
  double device = 0;  ///< the host reads a batch while the device decodes the one before
};

/// Decodes some samples of field `f`, spread over the dataset, by host threads and by `decoder`, on an idle
/// device. What cannot be read does not count. Blocks the host for some batches. Throws OutOfMemory,
/// DeviceError.
[[nodiscard]] DecoderRates try_decoders(const Dataset& dataset, std::size_t f, const Device& device,
                                        JpegDecoder& decoder, HostWorkers& workers, unsigned threads,
                                        std::size_t batch);

}  // namespace penstock
