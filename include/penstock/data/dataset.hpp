#pragma once

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// One named array of every sample.
struct Field {
  std::string name;
  DType dtype = DType::uint8;
  Shape shape;  ///< of one sample: {28, 28} for an image, {} for a label
  /// Set where the values are stored in a wider type and read as `dtype` without loss (see narrow.hpp).
  std::optional<DType> narrowed_from{};

  /// Bytes of one sample. Throws InvalidArgument when they do not fit size_t.
  [[nodiscard]] std::size_t sample_bytes() const;
};

/// Where one field's samples come from. For implementers; users of penstock read through Dataset, which
/// checks what it passes on. All entries are called from several threads at once.
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  [[nodiscard]] virtual const Field& field() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t sample_count() const noexcept = 0;

  /// Writes the samples `indices`, side by side, over all of `destination`, which holds exactly that many;
  /// every index is below sample_count(). Blocks the host. Throws Error that names what could not be read.
  virtual void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
                      StoreKind stores) const = 0;

  /// All samples side by side, where they lie so in the address space; otherwise empty.
  [[nodiscard]] virtual std::span<const std::byte> memory() const noexcept { return {}; }

  /// See Dataset::allocation.
  [[nodiscard]] virtual std::span<const std::byte> allocation() const noexcept { return memory(); }

  /// True where memory() is the mapping of a file: see Dataset::is_file_mapping.
  [[nodiscard]] virtual bool is_file_mapping() const noexcept { return false; }
};

/// A random-access collection of samples, each with the same fields. A handle: copies share the readers.
/// Thread-safe.
class Dataset {
 public:
  /// Throws InvalidArgument for no fields, no samples, samples of zero bytes, fields of different lengths,
  /// and names that are empty or occur twice.
  explicit Dataset(std::vector<std::shared_ptr<const FieldReader>> readers);

  [[nodiscard]] std::uint64_t sample_count() const noexcept;
  [[nodiscard]] std::size_t field_count() const noexcept;
  [[nodiscard]] const Field& field(std::size_t field) const;
  /// Position of the field called `name`. Throws InvalidArgument that lists the names.
  [[nodiscard]] std::size_t field_index(std::string_view name) const;
  /// Bytes of one sample of one field, and of one sample with all its fields.
  [[nodiscard]] std::size_t sample_bytes(std::size_t field) const;
  [[nodiscard]] std::size_t sample_bytes() const noexcept;

  /// Writes the samples `indices` of `field`, side by side, over `destination`; for pinned memory that only a
  /// device reads, StoreKind::streaming is quicker. Blocks the host; called from several threads on disjoint
  /// destinations. Allocates nothing for fields in memory and in files. Throws InvalidArgument for an index
  /// past the end or a destination of another size, and Error, naming the sample, for what cannot be read;
  /// the destination's bytes are then undefined.
  void gather(std::size_t field, std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores = StoreKind::cached) const;

  /// All samples of `field` side by side, valid as long as a copy of this handle lives: for a device that
  /// reads them over the link, or for moving them in one go. Empty when they do not lie in memory so.
  [[nodiscard]] std::span<const std::byte> memory(std::size_t field) const;

  /// What memory(field) is a part of, as far as is known: where samples are a slice of an array, the array.
  [[nodiscard]] std::span<const std::byte> allocation(std::size_t field) const;

  /// True where memory(field) is the mapping of a file. Anybody can cut a file short, and a CPU that then
  /// reads the mapping past the file's new end dies of SIGBUS. gather() is safe from that and throws Error;
  /// pages that were locked for a device before the cut stay readable to it.
  [[nodiscard]] bool is_file_mapping(std::size_t field) const;

  [[nodiscard]] const std::shared_ptr<const FieldReader>& reader(std::size_t field) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace penstock
