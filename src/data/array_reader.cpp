#include "core/shared/gather_rows.hpp"
#include "data/malformed.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

namespace {

class ArrayReader final : public FieldReader {
 public:
  ArrayReader(Field field, std::span<const std::byte> data, std::shared_ptr<const void> keep_alive,
              std::span<const std::byte> allocation)
      : field_(std::move(field)),
        sample_bytes_(field_.sample_bytes()),
        data_(data),
        allocation_(allocation),
        keep_alive_(std::move(keep_alive)) {}

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return data_.size() / sample_bytes_; }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_rows(data_.data(), sample_bytes_, indices, destination.data(), stores);
  }

  std::span<const std::byte> memory() const noexcept override { return data_; }
  std::span<const std::byte> allocation() const noexcept override { return allocation_; }

 private:
  Field field_;
  std::size_t sample_bytes_;
  std::span<const std::byte> data_;
  std::span<const std::byte> allocation_;
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace

FieldReaderPtr read_array(Field field, std::span<const std::byte> data,
                          std::shared_ptr<const void> keep_alive, std::span<const std::byte> allocation) {
  const std::size_t bytes = field.sample_bytes();
  if (bytes == 0) throw_zero_bytes(field);
  if (data.size() % bytes != 0) {
    throw InvalidArgument(fmt::format(
        "The {} bytes given for field '{}' are not a whole number of samples of {} bytes ({} of {}).",
        data.size(), field.name, bytes, format_shape(field.shape), dtype_name(field.dtype)));
  }
  const std::byte* const end = data.data() + data.size();
  if (allocation.empty()) allocation = data;
  if (data.data() < allocation.data() || end > allocation.data() + allocation.size()) {
    throw InvalidArgument(
        fmt::format("The bytes given for field '{}' do not lie in the allocation given.", field.name));
  }
  return std::make_shared<ArrayReader>(std::move(field), data, std::move(keep_alive), allocation);
}

}  // namespace penstock
