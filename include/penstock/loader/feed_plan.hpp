#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader_options.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A field's `scale` and `shift`, spread over its channels as GatherRequest takes them.
struct ChannelFactors {
  std::vector<float> scale;  ///< one value for each channel, or none
  std::vector<float> shift;
  std::uint32_t channels = 1;
  std::size_t channel_elements = 1;  ///< consecutive elements of one channel

  [[nodiscard]] bool empty() const noexcept { return scale.empty() && shift.empty(); }
};

/// Throws InvalidArgument if the field does not have as many channels as `options` has values.
[[nodiscard]] ChannelFactors channel_factors(const Field& field, const FieldOptions& options);

/// How one field travels from the dataset into the slots of the device ring. Samples 0 to resident_samples-1
/// are resident on the device. The others stream: they cross the link in each epoch.
///
/// A column does not travel by itself. Its samples lie in rows, side by side with those of other columns. The
/// rows travel as one more field, which lands in a buffer on the device. A kernel writes the slot from there.
struct FieldPlan {
  enum class Kind : std::uint8_t { field, column, rows };
  /// How the device reaches the samples that stream, if it reads them itself.
  enum class Source : std::uint8_t {
    none,    ///< the host gathers, or nothing streams
    pinned,  ///< the memory was page-locked before, by another library
    locked,  ///< page-locked where it lies
    copied,  ///< copied into pinned memory once
  };
  /// How the resident samples are moved to the device.
  enum class Upload : std::uint8_t {
    gathered,  ///< through pinned chunks that the host gathers
    staged,    ///< copied from where they lie, by the engine's staging
    direct,    ///< copied from where they lie, which is page-locked
  };

  Kind kind = Kind::field;
  Field stored;
  DType to = DType::uint8;  ///< as delivered
  ChannelFactors factors;
  std::uint64_t samples = 0;
  std::size_t sample_elements = 0;
  std::size_t sample_bytes = 0;     ///< of one sample, as stored
  std::size_t delivered_bytes = 0;  ///< of one sample, as delivered
  std::uint64_t resident_samples = 0;
  Upload upload = Upload::gathered;
  GatherPath path = GatherPath::host;  ///< host, zero_copy or copy_engine
  std::string reason;                  ///< why another path was not taken
  std::string decoder{};               ///< what decodes the samples on the device; empty: nothing
  bool on_disk = false;                ///< a part of the samples is in a file and not in memory
  Source source = Source::none;
  /// The field crosses the link into a staging buffer on the device, from which a kernel writes the slot.
  bool staged_on_device = false;

  std::size_t slot_offset = 0;     ///< of the batch's samples in a slot
  std::size_t staging_offset = 0;  ///< of the host's gathered samples in a staging slot
  std::size_t staging_positions =
      0;  ///< of the samples' positions in a staging slot, if listed and in two parts
  std::size_t device_staging_offset = 0;  ///< in a copy stream's staging buffer, if staged_on_device
  std::size_t row_offset = 0;             ///< of a column's sample in its row
  std::size_t rows_offset = 0;            ///< in a copy stream's staging buffer, of gathered rows

  [[nodiscard]] bool is_column() const noexcept { return kind == Kind::column; }
  [[nodiscard]] bool is_rows() const noexcept { return kind == Kind::rows; }
  [[nodiscard]] bool converts() const noexcept { return to != stored.dtype || !factors.empty(); }
  [[nodiscard]] bool streams() const noexcept { return resident_samples < samples && !is_column(); }
  [[nodiscard]] bool by_host() const noexcept { return streams() && path == GatherPath::host; }
  /// The host brings encoded samples, and those that the device does not decode.
  [[nodiscard]] bool by_decoder() const noexcept { return by_host() && !decoder.empty(); }
  [[nodiscard]] bool by_copy_engine() const noexcept { return streams() && path == GatherPath::copy_engine; }
  /// The host picks the samples that cross the link, one by one.
  [[nodiscard]] bool is_listed() const noexcept { return by_host() || by_copy_engine(); }
  /// Some samples are resident, and the others stream.
  [[nodiscard]] bool in_two_parts() const noexcept { return resident_samples > 0 && streams(); }
  /// A kernel gathers the samples, over the link or from device memory.
  [[nodiscard]] bool by_kernel() const noexcept { return !is_listed() && !is_column(); }
  /// The gathered bytes are the delivered bytes. All such fields travel together in one copy.
  [[nodiscard]] bool is_plain_copy() const noexcept {
    return by_host() && resident_samples == 0 && !converts() && !is_rows() && decoder.empty();
  }
  [[nodiscard]] std::size_t resident_bytes() const noexcept {
    return static_cast<std::size_t>(resident_samples) * sample_bytes;
  }
  /// One line such as "images: uint8 3x224x224, zero-copy gather, delivered as float32". A column travels as
  /// `rows` do.
  [[nodiscard]] std::string describe(const FieldPlan* rows) const;
};

/// The alignment of each field in a slot, in bytes.
inline constexpr std::size_t kSlotAlignment = 256;

/// How a loader will feed. Decided once, before anything is allocated. A value; all sizes are in bytes.
struct FeedPlan {
  std::vector<FieldPlan> fields;  ///< as the dataset has them, and then the rows, if there are columns
  std::size_t batch = 0;          ///< samples of a whole batch

  std::size_t slot_bytes = 0;            ///< of device memory, for one batch
  std::size_t staging_bytes = 0;         ///< of a pinned staging slot
  std::size_t staging_indices = 0;       ///< offset of the batch's indices in a staging slot
  std::size_t device_staging_bytes = 0;  ///< of each copy stream's staging buffer on the device

  std::size_t resident_bytes = 0;
  /// Bytes of device memory, for all fields' factors and for the places of the columns in a row.
  std::size_t table_bytes = 0;
  std::size_t budget_bytes = 0;  ///< the most device memory that the loader takes
  /// Device memory for the ring, the residents, the factors, the staging buffers and the lists, within the
  /// budget.
  std::size_t reserved_bytes = 0;

  /// The device computes the batch's indices, in each copy stream's staging buffer at `order_offset`. False:
  /// the host needs the indices, to gather or to count bytes, and writes them.
  bool orders_on_device = false;
  std::size_t order_offset = 0;
  /// Bytes of the indices and positions that the host writes and kernels read, from `staging_indices` on. One
  /// copy takes them to `device_lists` in the copy stream's staging buffer. 0: kernels read none, or read
  /// them over the link, for want of room on the device.
  std::size_t list_bytes = 0;
  std::size_t device_lists = 0;

  [[nodiscard]] std::size_t delivered_sample_bytes() const noexcept;  ///< of one sample with all its fields
  [[nodiscard]] bool gathers_on_host() const noexcept;
  /// The rows that travel for the columns; null if there are none.
  [[nodiscard]] const FieldPlan* rows() const noexcept;
  /// Samples of a column that a slot has room for: at least a batch, so many that the next column is aligned.
  [[nodiscard]] std::size_t column_samples(const FieldPlan& column) const noexcept;
  /// Fields that are delivered: all but the rows.
  [[nodiscard]] std::span<const FieldPlan> delivered() const noexcept;
  /// One line for each field: how it travels, and why.
  [[nodiscard]] std::vector<std::string> describe() const;
};

}  // namespace penstock
