// Feeds two arrays to a device, shuffled, and reads each batch back: feed_arrays [DEVICE]

#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <vector>

int main(int argc, char** argv) {
  using namespace penstock;
  try {
    const Device device = Device::open(argc > 1 ? argv[1] : "auto");

    constexpr std::size_t samples = 10'000;
    constexpr std::size_t pixels = 28 * 28;
    std::vector<std::uint8_t> images(samples * pixels);
    std::vector<std::int32_t> labels(samples);
    for (std::size_t i = 0; i < samples; ++i) {
      labels[i] = static_cast<std::int32_t>(i % 10);
      for (std::size_t p = 0; p < pixels; ++p) images[i * pixels + p] = static_cast<std::uint8_t>(labels[i]);
    }
    const Dataset dataset({read_array({"images", DType::uint8, {28, 28}}, std::move(images)),
                           read_array({"labels", DType::int32, {}}, std::move(labels))});

    LoaderOptions options;
    options.batch_size = 256;
    options.shuffle = true;
    options.fields = {{.name = "images", .to = DType::float32}};
    Loader loader(dataset, device, options);

    const Stream stream = device.create_stream();
    TransferEngine engine(device);
    std::vector<float> first_pixels;
    std::size_t seen = 0;
    while (const auto batch = loader.next(stream)) {
      // A real consumer would enqueue its kernels on `stream` here. This one reads the batch back.
      const DeviceField& field = batch->field("images");
      std::vector<float> host(field.bytes / sizeof(float));
      engine.copy(host.data(), field.data, field.bytes, {.after = &stream}).synchronize();
      for (std::size_t i = 0; i < batch->size(); ++i) {
        if (host[i * pixels] != host[i * pixels + pixels - 1]) return EXIT_FAILURE;
        first_pixels.push_back(host[i * pixels]);
      }
      seen += batch->size();
    }
    const double mean =
        std::accumulate(first_pixels.begin(), first_pixels.end(), 0.0) / static_cast<double>(seen);
    std::cout << seen << " samples on " << device.info().name << ", mean label " << mean << '\n'
              << loader.stats();
    return seen == samples && mean == 4.5 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
