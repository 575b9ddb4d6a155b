#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace penstock {

namespace {

class CallbackReader final : public FieldReader {
 public:
  CallbackReader(Field field, std::uint64_t sample_count, SampleFunction function)
      : field_(std::move(field)),
        sample_bytes_(field_.sample_bytes()),
        sample_count_(sample_count),
        function_(std::move(function)) {}

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return sample_count_; }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      call(indices[i], destination.subspan(i * sample_bytes_, sample_bytes_));
    }
  }

 private:
  void call(std::uint64_t index, std::span<std::byte> sample) const {
    std::size_t written = 0;
    try {
      written = function_(index, sample);
    } catch (const std::exception& error) {
      throw Error(fmt::format("The callback of field '{}' failed for sample {}: {}", field_.name, index,
                              error.what()));
    } catch (...) {
      throw Error(
          fmt::format("The callback of field '{}' failed for sample {} with something that is "
                      "not a std::exception.",
                      field_.name, index));
    }
    if (written != sample.size()) {
      throw Error(
          fmt::format("The callback of field '{}' wrote {} bytes for sample {}; it has to write all {}.",
                      field_.name, written, index, sample.size()));
    }
  }

  Field field_;
  std::size_t sample_bytes_;
  std::uint64_t sample_count_;
  SampleFunction function_;
};

}  // namespace

FieldReaderPtr read_callback(Field field, std::uint64_t sample_count, SampleFunction function) {
  if (!function) throw InvalidArgument(fmt::format("The callback of field '{}' is empty.", field.name));
  return std::make_shared<CallbackReader>(std::move(field), sample_count, std::move(function));
}

}  // namespace penstock
