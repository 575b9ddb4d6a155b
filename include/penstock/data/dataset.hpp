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

struct FeedStatistics;
class JpegSource;

/// One named array of every sample.
struct Field {
  std::string name;
  DType dtype = DType::uint8;
  Shape shape;  ///< of one sample: {28, 28} for an image, {} for a label
  /// Set if the values are stored in a wider type and read as `dtype` without loss (see narrow.hpp).
  std::optional<DType> narrowed_from{};

  /// Bytes of one sample. Throws InvalidArgument if they do not fit size_t.
  [[nodiscard]] std::size_t sample_bytes() const;
};

/// The source of one field's samples. For implementers: users read through Dataset, which checks the
/// arguments it passes on. Several threads call all entries at once.
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  [[nodiscard]] virtual const Field& field() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t sample_count() const noexcept = 0;

  /// Writes the samples `indices` side by side over `destination`, which holds exactly that many. Every index
  /// is below sample_count(). Blocks the host. Throws Error that names the sample or file.
  virtual void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
                      StoreKind stores) const = 0;

  /// The same in `epoch`, on which the bytes of a sample may depend: see varies_by_epoch.
  virtual void gather_in_epoch(std::uint64_t /*epoch*/, std::span<const std::uint64_t> indices,
                               std::span<std::byte> destination, StoreKind stores) const {
    gather(indices, destination, stores);
  }
  /// True if the bytes of a sample depend on the epoch, so that none may be kept for another.
  [[nodiscard]] virtual bool varies_by_epoch() const noexcept { return false; }
  /// Set if the reader makes the samples of an epoch, as packs of others are: their number, at most
  /// sample_count(). They come in sequence, since the reader has shuffled what they are made of. All fields
  /// of a dataset then give the same number.
  [[nodiscard]] virtual std::optional<std::uint64_t> samples_in_epoch(std::uint64_t /*epoch*/) const {
    return std::nullopt;
  }
  /// The shape of such a sample, which has no more values than the field's shape. Those come first; the bytes
  /// behind them mean nothing, and do not cross the link.
  [[nodiscard]] virtual Shape shape_in_epoch(std::uint64_t /*epoch*/, std::uint64_t /*index*/) const {
    return field().shape;
  }
  /// True if a sample takes long to decode. All threads of a team then share a batch, sample by sample.
  [[nodiscard]] virtual bool is_decoded() const noexcept { return false; }

  /// The JPEGs among the samples, if a device is to decode them where it can; otherwise null.
  [[nodiscard]] virtual const JpegSource* jpegs() const noexcept { return nullptr; }

  /// Adds the samples that could not be read, in place of which gather() wrote other bytes.
  virtual void add_failures(FeedStatistics& /*statistics*/) const {}

  /// All samples, if they lie side by side in the address space; otherwise empty.
  [[nodiscard]] virtual std::span<const std::byte> memory() const noexcept { return {}; }

  /// Where a sample's bytes lie in the address space, which may be in a mapped file; null if gather() makes
  /// them.
  [[nodiscard]] virtual const std::byte* address(std::uint64_t index) const noexcept;

  /// True if the samples lie in memory, at equal distances and not side by side.
  [[nodiscard]] virtual bool is_strided() const noexcept { return false; }

  /// See Dataset::allocation.
  [[nodiscard]] virtual std::span<const std::byte> allocation() const noexcept { return memory(); }

  /// True if memory() is the mapping of a file: see Dataset::is_file_mapping.
  [[nodiscard]] virtual bool is_file_mapping() const noexcept { return false; }
};

/// A random-access collection of samples, each with the same fields. A handle: copies share the readers.
/// Thread-safe.
class Dataset {
 public:
  /// Throws InvalidArgument if there are no fields, no samples, samples of zero bytes, fields of different
  /// lengths, or names that are empty or occur twice.
  explicit Dataset(std::vector<std::shared_ptr<const FieldReader>> readers);

  [[nodiscard]] std::uint64_t sample_count() const noexcept;
  [[nodiscard]] std::size_t field_count() const noexcept;
  [[nodiscard]] const Field& field(std::size_t field) const;
  /// Position of the field called `name`. Throws InvalidArgument that lists the known names.
  [[nodiscard]] std::size_t field_index(std::string_view name) const;
  /// Bytes of one sample of one field, and of one sample with all its fields.
  [[nodiscard]] std::size_t sample_bytes(std::size_t field) const;
  [[nodiscard]] std::size_t sample_bytes() const noexcept;

  /// Writes the samples `indices` of `field` in `epoch` side by side over `destination`. If that is pinned
  /// memory that only a device reads, StoreKind::streaming is faster. Blocks the host. Several threads may
  /// gather into disjoint destinations. Allocates nothing for fields in memory and in files. Throws
  /// InvalidArgument for an index past the end or a destination of another size, and Error that names the
  /// sample that cannot be read. After a throw, the destination's bytes are undefined.
  void gather(std::size_t field, std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores = StoreKind::cached, std::uint64_t epoch = 0) const;

  /// All samples of `field`, if they lie side by side in memory; otherwise empty. Lets a device read them
  /// over the link, or move them in one copy. Valid as long as a copy of this handle lives.
  [[nodiscard]] std::span<const std::byte> memory(std::size_t field) const;

  /// True if the samples lie in memory with gaps between them, as a column of a matrix does. memory(field) is
  /// then empty.
  [[nodiscard]] bool is_strided(std::size_t field) const;

  /// The memory that memory(field) is a part of, as far as is known: the whole array of which samples are a
  /// slice.
  [[nodiscard]] std::span<const std::byte> allocation(std::size_t field) const;

  /// True if memory(field) is the mapping of a file. If the file is cut short, a process whose CPU reads the
  /// mapping past the new end dies of SIGBUS. gather() throws Error instead. Pages that were locked for a
  /// device before the cut stay readable to it.
  [[nodiscard]] bool is_file_mapping(std::size_t field) const;

  [[nodiscard]] const std::shared_ptr<const FieldReader>& reader(std::size_t field) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// True if a field of `dataset` is decoded: see FieldReader::is_decoded.
[[nodiscard]] bool decodes(const Dataset& dataset) noexcept;

}  // namespace penstock
