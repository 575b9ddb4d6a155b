#pragma once

#include <penstock/data/readers.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Samples of different lengths: the values of each lie side by side in memory that the caller owns,
/// anywhere. `field.shape` is that of one value: {} for a token. `keep_alive` as for read_array.
struct RaggedField {
  Field field;
  std::vector<std::span<const std::byte>> samples;
  std::shared_ptr<const void> keep_alive;
};

struct PackOptions {
  /// A pack holds whole samples of at most so many values. 0: a pack is a matrix of `samples` samples, filled
  /// up with zeros to the longest of them.
  std::size_t values = 0;
  std::size_t samples = 0;
  bool shuffle = false;
  std::uint64_t seed = 0;
  /// Leaves out an epoch's last matrix if it has fewer samples.
  bool drop_last = false;
};

/// Puts the samples of each epoch together into packs. They follow from the lengths, the options and the
/// epoch alone. Samples come in a sampler's order: each goes into the first pack where it fits, of up to 16
/// that are being filled. If it fits into none, a new one is begun, and the oldest of 16 is complete. Samples
/// without values are in no pack; they are rows of a matrix. Thread-safe.
class Packing {
 public:
  struct Pack {
    std::span<const std::uint32_t> samples;
    std::size_t values = 0;   ///< of all its samples
    std::size_t longest = 0;  ///< values of one sample
  };
  /// The packs of an epoch.
  struct Plan {
    Plan() = default;
    Plan(Plan&&) = default;            // `packs` are views of `order`
    std::vector<std::uint32_t> order;  ///< samples, those of a pack side by side
    std::vector<Pack> packs;
    std::size_t values = 0;
  };

  /// Throws InvalidArgument if the fields' samples differ in number or in length, if one has more values than
  /// a pack, if there are no values, and for more than 2^32 - 1 samples.
  Packing(const std::vector<RaggedField>& fields, const PackOptions& options);

  [[nodiscard]] const PackOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::uint64_t sample_count() const noexcept { return lengths_.size(); }
  [[nodiscard]] std::size_t length(std::uint32_t sample) const noexcept { return lengths_[sample]; }
  /// The most values and the most samples of a pack. A matrix has the values that fill it up, too. A pack has
  /// four times as many samples as fill it on average, and 16, at most.
  [[nodiscard]] std::size_t most_values() const noexcept { return most_values_; }
  [[nodiscard]] std::size_t most_samples() const noexcept { return most_samples_; }
  /// The packs of `epoch`; those of the last few are kept. Making them blocks the host: for some 40 to 80 ns
  /// a sample.
  [[nodiscard]] std::shared_ptr<const Plan> plan(std::uint64_t epoch) const;
  /// How full the packs of `epoch` are, in words.
  [[nodiscard]] std::string describe(std::uint64_t epoch) const;

 private:
  [[nodiscard]] Plan make_plan(std::uint64_t epoch) const;
  template <typename Take>
  void in_order(std::uint64_t epoch, Take&& take) const;
  void pack_first_fit(std::uint64_t epoch, Plan& plan) const;
  void pack_in_turn(std::uint64_t epoch, Plan& plan) const;

  PackOptions options_;
  std::vector<std::uint32_t> lengths_;
  std::size_t shortest_ = 0;  ///< of those with values
  std::size_t most_values_ = 0;
  std::size_t most_samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, std::shared_ptr<const Plan>> plans_;  ///< by epoch
};

/// The packs as samples: a reader for each field, and the last one, "cu_seqlens" of int32: where the samples
/// of a pack begin, and the end of the last one; for matrices "lengths", the values of each sample. A pack's
/// shape is FieldReader::shape_in_epoch: its values, or rows and columns of its matrix. `fields` are those of
/// `packing`.
[[nodiscard]] std::vector<FieldReaderPtr> read_packs(std::vector<RaggedField> fields,
                                                     const std::shared_ptr<const Packing>& packing);

}  // namespace penstock
