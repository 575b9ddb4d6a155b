#include <penstock/loader/load_weights.hpp>

namespace penstock {

Transfer load_weights(TransferEngine& engine, const WeightFile& file, void* destination,
                      const FillOptions& options) {
  const auto read = [file](std::size_t offset, std::span<std::byte> bytes) { file.read(offset, bytes); };
  return engine.fill(destination, file.bytes(), read, options);
}

}  // namespace penstock
