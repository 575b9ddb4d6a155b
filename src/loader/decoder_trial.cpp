#include "loader/decoder_trial.hpp"

#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace penstock {

namespace {

constexpr int kRounds = 3;  // the first of which fetches the files and takes memory

template <typename Work>
void time(double& best, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

/// Nothing may be freed that work under way reads.
struct Finish {
  const Stream& stream;
  ~Finish() {
    try {
      stream.synchronize();
    } catch (...) {  // a failed device does no more work
    }
  }
};

}  // namespace

JpegToRender to_render(const JpegSample& jpeg, std::byte* destination) {
  const PictureView& view = jpeg.view;
  return {.file = jpeg.file,
          .width = jpeg.stored.width,
          .height = jpeg.stored.height,
          .crop_left = view.crop.left,
          .crop_top = view.crop.top,
          .crop_width = view.crop.width,
          .crop_height = view.crop.height,
          .resized_width = view.resized.width,
          .resized_height = view.resized.height,
          .window_left = view.window.left,
          .window_top = view.window.top,
          .flip_horizontally = view.flip_horizontally,
          .flip_vertically = view.flip_vertically,
          .destination = destination};
}

DecoderRates try_decoders(const Dataset& dataset, std::size_t f, const Device& device, JpegDecoder& decoder,
                          HostWorkers& workers, unsigned threads, std::size_t batch) {
  const JpegSource& source = *dataset.reader(f)->jpegs();
  const auto count = std::min<std::size_t>(batch, static_cast<std::size_t>(dataset.sample_count()));
  const std::size_t bytes = dataset.sample_bytes(f);
  const auto sample = [&](std::size_t i) { return i * dataset.sample_count() / count; };
  std::vector<std::byte> rows(count * bytes);
  const auto decode = [&](std::size_t i) {
    try {
      const std::uint64_t index = sample(i);
      dataset.gather(f, {&index, 1}, {rows.data() + i * bytes, bytes});
    } catch (const Error&) {
    }
  };
  Pool memory = make_device_pool(device);
  const Buffer to = memory.allocate(count * bytes);
  const Stream stream = device.create_stream();
  std::vector<JpegSample> files(count);
  std::vector<char> on_device(count);
  const Finish finish{stream};
  double decoded = std::numeric_limits<double>::infinity();
  double read = decoded;
  double rendered = decoded;
  for (int round = 0; round < kRounds; ++round) {
    time(decoded, [&] { workers.for_each(count, decode, threads); });
    const auto read_or_decode = [&](std::size_t i) {
      on_device[i] = source.read(0, sample(i), files[i]) ? 1 : 0;
      if (on_device[i] == 0) decode(i);
    };
    time(read, [&] { workers.for_each(count, read_or_decode, threads); });
    std::vector<JpegToRender> pictures;
    for (std::size_t i = 0; i < count; ++i) {
      if (on_device[i] != 0) pictures.push_back(to_render(files[i], to.data() + i * bytes));
    }
    time(rendered, [&] {
      for (const std::size_t refused : decoder.render(0, pictures, stream)) decode(refused);
      stream.synchronize();
    });
  }
  return {.host = static_cast<double>(count) / decoded,
          .device = static_cast<double>(count) / std::max(read, rendered)};
}

}  // namespace penstock
