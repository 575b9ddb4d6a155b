#include "data/file_reader.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

namespace penstock {

namespace {

// Values handled together. The count is constant so that compilers vectorize the loops.
constexpr std::size_t kGroup = 64;

// Bytes that one thread reads at a time while it scans or narrows.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

bool is_integer(DType dtype) {
  const DTypeKind kind = dtype_kind(dtype);
  return kind == DTypeKind::unsigned_integer || kind == DTypeKind::signed_integer;
}

bool is_narrower_unsigned(DType narrow, DType wide) {
  return is_integer(wide) && dtype_kind(narrow) == DTypeKind::unsigned_integer &&
         dtype_bytes(narrow) < dtype_bytes(wide);
}

// The bits that any of the values has set. A value fits `bits` bits if it has set no bit past them, and a
// negative value has set the topmost bit.
template <typename Wide>
std::uint64_t bits_of(const std::byte* values, std::size_t count) noexcept {
  std::array<Wide, kGroup> any{};
  std::array<Wide, kGroup> group;
  std::size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    std::memcpy(group.data(), values + i * sizeof(Wide), sizeof(group));
    for (std::size_t j = 0; j < kGroup; ++j) any[j] |= group[j];
  }
  std::uint64_t all = 0;
  for (const Wide bits : any) all |= bits;
  for (; i < count; ++i) {
    Wide value;
    std::memcpy(&value, values + i * sizeof(Wide), sizeof(Wide));
    all |= value;
  }
  return all;
}

std::uint64_t bits_of(const std::byte* values, std::size_t bytes, std::size_t value_bytes) noexcept {
  switch (value_bytes) {
    case 1:
      return bits_of<std::uint8_t>(values, bytes);
    case 2:
      return bits_of<std::uint16_t>(values, bytes / 2);
    case 4:
      return bits_of<std::uint32_t>(values, bytes / 4);
    default:
      return bits_of<std::uint64_t>(values, bytes / 8);
  }
}

// Also returns the bits that any of the values has set.
template <typename Wide, typename Narrow>
std::uint64_t narrow_values(const std::byte* from, std::size_t count, std::byte* to) noexcept {
  std::array<Wide, kGroup> any{};
  std::array<Wide, kGroup> group;
  std::array<Narrow, kGroup> result;
  std::size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    std::memcpy(group.data(), from + i * sizeof(Wide), sizeof(group));
    for (std::size_t j = 0; j < kGroup; ++j) {
      any[j] |= group[j];
      result[j] = static_cast<Narrow>(group[j]);
    }
    std::memcpy(to + i * sizeof(Narrow), result.data(), sizeof(result));
  }
  std::uint64_t all = 0;
  for (const Wide bits : any) all |= bits;
  for (; i < count; ++i) {
    Wide value;
    std::memcpy(&value, from + i * sizeof(Wide), sizeof(Wide));
    all |= value;
    const auto narrowed = static_cast<Narrow>(value);
    std::memcpy(to + i * sizeof(Narrow), &narrowed, sizeof(Narrow));
  }
  return all;
}

using NarrowFunction = std::uint64_t (*)(const std::byte*, std::size_t, std::byte*) noexcept;

NarrowFunction narrow_function(std::size_t wide, std::size_t narrow) noexcept {
  if (wide == 2) return narrow_values<std::uint16_t, std::uint8_t>;
  if (wide == 4) {
    return narrow == 1 ? narrow_values<std::uint32_t, std::uint8_t>
                       : narrow_values<std::uint32_t, std::uint16_t>;
  }
  return narrow == 1   ? narrow_values<std::uint64_t, std::uint8_t>
         : narrow == 2 ? narrow_values<std::uint64_t, std::uint16_t>
                       : narrow_values<std::uint64_t, std::uint32_t>;
}

// Buffers that threads borrow. The steady state allocates none.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes) {}

  template <typename Use>
  void with(Use&& use) {
    std::vector<std::byte> buffer = take();
    struct Return {
      Scratch& scratch;
      std::vector<std::byte>& buffer;
      ~Return() { scratch.give_back(std::move(buffer)); }
    } give_back{*this, buffer};
    use(std::span(buffer));
  }

 private:
  std::vector<std::byte> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::vector<std::byte> buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
      ++lent_;
      free_.reserve(lent_);  // so that giving back cannot fail
    }
    return std::vector<std::byte>(bytes_);
  }

  void give_back(std::vector<std::byte> buffer) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::size_t bytes_;
  std::mutex mutex_;
  std::size_t lent_ = 0;
  std::vector<std::vector<std::byte>> free_;
};

class NarrowReader final : public FieldReader {
 public:
  NarrowReader(FieldReaderPtr wide, DType dtype)
      : wide_(std::move(wide)),
        field_(wide_->field()),
        elements_(element_count(field_.shape)),
        wide_bytes_(field_.sample_bytes()),
        fits_(~std::uint64_t{0} >> (64 - 8 * dtype_bytes(dtype))),
        narrow_(narrow_function(dtype_bytes(field_.dtype), dtype_bytes(dtype))),
        batch_(std::max<std::size_t>(1, kScratchBytes / wide_bytes_)),
        scratch_(batch_ * wide_bytes_) {
    field_.narrowed_from = field_.narrowed_from.value_or(field_.dtype);
    field_.dtype = dtype;
  }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return wide_->sample_count(); }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    const std::size_t narrow_bytes = elements_ * dtype_bytes(field_.dtype);
    scratch_.with([&](std::span<std::byte> buffer) {
      for (std::size_t i = 0; i < indices.size(); i += batch_) {
        const auto part = indices.subspan(i, std::min(batch_, indices.size() - i));
        const auto values = buffer.first(part.size() * wide_bytes_);
        wide_->gather(part, values, StoreKind::cached);
        if (narrow_(values.data(), part.size() * elements_, destination.data() + i * narrow_bytes) > fits_) {
          throw_unfit(part, values);
        }
      }
    });
  }

 private:
  // Small enough to stay in the second-level cache between the two passes.
  static constexpr std::size_t kScratchBytes = std::size_t{64} << 10;

  [[noreturn]] void throw_unfit(std::span<const std::uint64_t> indices,
                                std::span<const std::byte> values) const {
    const std::size_t value_bytes = wide_bytes_ / elements_;
    std::size_t i = 0;
    while (bits_of(values.data() + i * wide_bytes_, wide_bytes_, value_bytes) <= fits_) ++i;
    throw Error(
        fmt::format("Sample {} of field '{}' holds a value that does not fit {}: the data has changed since "
                    "it was first read. Open the dataset again, or do not narrow it.",
                    indices[i], field_.name, dtype_name(field_.dtype)));
  }

  FieldReaderPtr wide_;
  Field field_;
  std::size_t elements_;
  std::size_t wide_bytes_;
  std::uint64_t fits_;
  NarrowFunction narrow_;
  std::size_t batch_;
  mutable Scratch scratch_;
};

// Calls `body(first, count)` for parts of [0, samples), split over the workers.
template <typename Body>
void for_each_part(std::uint64_t samples, std::size_t sample_bytes, HostWorkers* workers, Body&& body) {
  const std::uint64_t part = std::max<std::uint64_t>(1, kChunkBytes / sample_bytes);
  const std::uint64_t parts = (samples + part - 1) / part;
  const auto one = [&](std::size_t i) { body(i * part, std::min(part, samples - i * part)); };
  if (workers != nullptr) return workers->for_each(static_cast<std::size_t>(parts), one);
  for (std::uint64_t i = 0; i < parts; ++i) one(static_cast<std::size_t>(i));
}

// Passes the samples [first, first + count) of `field` to `use`, one span of bytes after another.
void gather_part(const Dataset& dataset, std::size_t field, std::uint64_t first, std::uint64_t count,
                 std::span<std::byte> destination) {
  std::vector<std::uint64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  dataset.gather(field, indices, destination);
}

std::uint64_t scan(const Dataset& dataset, std::size_t field, std::uint64_t first, std::uint64_t count) {
  const std::size_t value_bytes = dtype_bytes(dataset.field(field).dtype);
  const std::size_t bytes = static_cast<std::size_t>(count) * dataset.sample_bytes(field);
  const std::span<const std::byte> memory = dataset.memory(field);
  if (!memory.empty() && !dataset.is_file_mapping(field)) {
    return bits_of(memory.data() + first * dataset.sample_bytes(field), bytes, value_bytes);
  }
  std::vector<std::byte> values(bytes);
  gather_part(dataset, field, first, count, values);
  return bits_of(values.data(), bytes, value_bytes);
}

}  // namespace

FieldReaderPtr copy_field(const Dataset& dataset, std::size_t field, HostWorkers* workers) {
  const std::size_t sample_bytes = dataset.sample_bytes(field);
  HostPages pages(static_cast<std::size_t>(dataset.sample_count()) * sample_bytes);
  for_each_part(dataset.sample_count(), sample_bytes, workers, [&](std::uint64_t first, std::uint64_t count) {
    const auto begin = static_cast<std::size_t>(first) * sample_bytes;
    gather_part(dataset, field, first, count,
                pages.bytes().subspan(begin, static_cast<std::size_t>(count) * sample_bytes));
  });
  return read_pages(dataset.field(field), std::move(pages));
}

DType narrowest_dtype(const Dataset& dataset, std::size_t field, HostWorkers* workers) {
  const DType wide = dataset.field(field).dtype;
  if (!is_integer(wide) || dtype_bytes(wide) == 1) return wide;
  const std::size_t half = dtype_bytes(wide) / 2;
  std::atomic<std::uint64_t> bits{0};
  for_each_part(dataset.sample_count(), dataset.sample_bytes(field), workers,
                [&](std::uint64_t first, std::uint64_t count) {
                  if ((bits.load(std::memory_order_relaxed) >> (8 * half)) != 0) return;
                  bits.fetch_or(scan(dataset, field, first, count), std::memory_order_relaxed);
                });
  for (const DType narrow : {DType::uint8, DType::uint16, DType::uint32}) {
    const bool fits = (bits.load() >> (8 * dtype_bytes(narrow))) == 0;
    if (fits && is_narrower_unsigned(narrow, wide)) return narrow;
  }
  return wide;
}

FieldReaderPtr narrow_field(FieldReaderPtr wide, DType dtype) {
  if (!is_narrower_unsigned(dtype, wide->field().dtype)) {
    throw InvalidArgument(
        fmt::format("Field '{}' of {} cannot be narrowed to {}: that takes a narrower unsigned "
                    "integer.",
                    wide->field().name, dtype_name(wide->field().dtype), dtype_name(dtype)));
  }
  return std::make_shared<NarrowReader>(std::move(wide), dtype);
}

Dataset narrow_integers(const Dataset& dataset, const NarrowOptions& options) {
  std::vector<FieldReaderPtr> readers;
  for (std::size_t field = 0; field < dataset.field_count(); ++field) {
    const DType dtype = narrowest_dtype(dataset, field, options.workers);
    FieldReaderPtr reader = dataset.reader(field);
    if (dtype != dataset.field(field).dtype) {
      reader = narrow_field(std::move(reader), dtype);
      const Dataset narrow({reader});
      const bool keep = narrow.sample_count() <= options.copy_limit / narrow.sample_bytes();
      if (keep) reader = copy_field(narrow, 0, options.workers);
    }
    readers.push_back(std::move(reader));
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
