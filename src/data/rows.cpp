#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/rows.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kRowAlignment = 16;
// The values of one column for a block of rows: they stay in the first-level cache.
constexpr std::size_t kMostColumnBytes = std::size_t{16} << 10;
// A block of rows stays in the second-level cache while its columns are written.
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

/// Calls `use` with `bytes` as a constant if it is the size of a number, so that a copy is a load and a
/// store.
template <typename Use>
void with_size(std::size_t bytes, Use&& use) {
  switch (bytes) {
    case 1:
      return use(std::integral_constant<std::size_t, 1>());
    case 2:
      return use(std::integral_constant<std::size_t, 2>());
    case 4:
      return use(std::integral_constant<std::size_t, 4>());
    case 8:
      return use(std::integral_constant<std::size_t, 8>());
    default:
      return use(bytes);
  }
}

class RowsReader final : public FieldReader {
 public:
  RowsReader(Field field, std::vector<std::shared_ptr<const FieldReader>> fields, RowLayout layout)
      : field_(std::move(field)), fields_(std::move(fields)), layout_(std::move(layout)) {
    for (const auto& column : fields_) sample_bytes_.push_back(column->field().sample_bytes());
    has_gaps_ = std::reduce(sample_bytes_.begin(), sample_bytes_.end()) < layout_.row_bytes;
    block_ = std::max<std::size_t>(
        1, std::min(kBlockBytes / layout_.row_bytes, kMostColumnBytes / std::ranges::max(sample_bytes_)));
  }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return fields_.front()->sample_count(); }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    std::array<std::byte, kMostColumnBytes> values;
    if (has_gaps_) std::memset(destination.data(), 0, destination.size());
    for (std::size_t i = 0; i < indices.size(); i += block_) {
      const auto part = indices.subspan(i, std::min(block_, indices.size() - i));
      std::byte* const rows = destination.data() + i * layout_.row_bytes;
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        const std::size_t bytes = sample_bytes_[f];
        fields_[f]->gather(part, std::span(values).first(part.size() * bytes), StoreKind::cached);
        with_size(bytes, [&](auto size) {
          for (std::size_t k = 0; k < part.size(); ++k) {
            std::memcpy(rows + layout_.offsets[f] + k * layout_.row_bytes, values.data() + k * size, size);
          }
        });
      }
    }
  }

 private:
  Field field_;
  std::vector<std::shared_ptr<const FieldReader>> fields_;
  RowLayout layout_;
  std::vector<std::size_t> sample_bytes_;
  bool has_gaps_ = false;
  std::size_t block_ = 1;  ///< rows that are made together
};

class StridedReader final : public FieldReader {
 public:
  StridedReader(Field field, std::span<const std::byte> memory, std::size_t stride,
                std::shared_ptr<const void> keep_alive)
      : field_(std::move(field)),
        sample_bytes_(field_.sample_bytes()),
        memory_(memory),
        stride_(stride),
        keep_alive_(std::move(keep_alive)) {}

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override {
    return (memory_.size() - sample_bytes_) / stride_ + 1;
  }
  bool is_strided() const noexcept override { return stride_ > sample_bytes_; }
  const std::byte* address(std::uint64_t index) const noexcept override {
    return memory_.data() + index * stride_;
  }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    with_size(sample_bytes_, [&](auto size) {
      std::byte* to = destination.data();
      for (const std::uint64_t index : indices) {
        std::memcpy(to, memory_.data() + index * stride_, size);
        to += size;
      }
    });
  }

 private:
  Field field_;
  std::size_t sample_bytes_;
  std::span<const std::byte> memory_;
  std::size_t stride_;
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace

RowLayout lay_out_row(std::span<const Field> fields) {
  std::vector<std::size_t> order(fields.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t f) {
    return std::pair(~dtype_bytes(fields[f].dtype), f);  // descending, and then in the order of the fields
  });
  RowLayout layout;
  layout.offsets.resize(fields.size());
  for (const std::size_t f : order) {
    layout.offsets[f] = layout.row_bytes;
    layout.row_bytes += fields[f].sample_bytes();
  }
  layout.row_bytes = align_up(layout.row_bytes, kRowAlignment);
  return layout;
}

std::shared_ptr<const FieldReader> read_rows(std::string name,
                                             std::vector<std::shared_ptr<const FieldReader>> fields,
                                             RowLayout layout) {
  if (fields.empty() || fields.size() != layout.offsets.size()) {
    throw InvalidArgument(
        fmt::format("{} fields were given for a row with {}.", fields.size(), layout.offsets.size()));
  }
  for (const auto& field : fields) {
    if (field->sample_count() != fields.front()->sample_count()) {
      throw InvalidArgument(
          fmt::format("Field '{}' has {} samples, and '{}' has {}: rows need equal numbers.",
                      fields.front()->field().name, fields.front()->sample_count(), field->field().name,
                      field->sample_count()));
    }
    if (field->field().sample_bytes() > kMostColumnBytes) {
      throw InvalidArgument(fmt::format("Field '{}' is too wide to lie in rows: {} bytes, of at most {}.",
                                        field->field().name, field->field().sample_bytes(),
                                        kMostColumnBytes));
    }
  }
  Field rows{.name = std::move(name), .dtype = DType::uint8, .shape = {layout.row_bytes}};
  return std::make_shared<RowsReader>(std::move(rows), std::move(fields), std::move(layout));
}

std::shared_ptr<const FieldReader> read_strided(Field field, std::span<const std::byte> memory,
                                                std::size_t stride, std::shared_ptr<const void> keep_alive) {
  const std::size_t bytes = field.sample_bytes();
  if (bytes == 0 || stride == 0 || memory.size() < bytes || (memory.size() - bytes) % stride != 0) {
    throw InvalidArgument(
        fmt::format("Samples of field '{}' have {} bytes: {} bytes do not hold one every {} bytes.",
                    field.name, bytes, memory.size(), stride));
  }
  return std::make_shared<StridedReader>(std::move(field), memory, stride, std::move(keep_alive));
}

}  // namespace penstock
