#include <penstock/loader/load_weights.hpp>

namespace penstock {

namespace {

FillFunction reads_of(const WeightFile& file) {
  return [file](std::size_t offset, std::span<std::byte> bytes) { file.read(offset, bytes); };
}

}  // namespace

Transfer load_weights(TransferEngine& engine, const WeightFile& file, void* destination,
                      const FillOptions& options) {
  return engine.fill(destination, file.bytes(), reads_of(file), options);
}

Transfer load_weights(GroupEngine& engine, const WeightFile& file, std::span<std::byte* const> destinations,
                      const GroupFillOptions& options) {
  return engine.feed_once_filled(destinations, file.bytes(), reads_of(file), options);
}

Transfer load_weights(GroupEngine& engine, std::size_t receiver, const WeightFile& file, void* destination,
                      const GroupFillOptions& options) {
  return engine.relay_filled(receiver, destination, file.bytes(), reads_of(file), options);
}

}  // namespace penstock
