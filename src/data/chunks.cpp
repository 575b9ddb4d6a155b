#include <penstock/core/error.hpp>
#include <penstock/core/permutation.hpp>
#include <penstock/data/chunks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

namespace penstock {

namespace {

class ChunksReader final : public FieldReader {
 public:
  ChunksReader(std::string name, std::vector<FieldReaderPtr> chunks, std::vector<std::uint64_t> rows)
      : chunks_(std::move(chunks)), rows_(std::move(rows)), field_(chunks_.front()->field()) {
    field_.name = std::move(name);
    sample_bytes_ = field_.sample_bytes();
    for (const FieldReaderPtr& chunk : chunks_) {
      begins_.push_back(total_);
      total_ += chunk->sample_count();
    }
  }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return rows_.empty() ? total_ : rows_.size(); }
  std::uint64_t total() const noexcept { return total_; }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto [chunk, row] = place_of(indices[i]);
      chunks_[chunk]->gather({&row, 1}, destination.subspan(i * sample_bytes_, sample_bytes_), stores);
    }
  }

  const std::byte* address(std::uint64_t index) const noexcept override {
    const auto [chunk, row] = place_of(index);
    return chunks_[chunk]->address(row);
  }

 private:
  struct Place {
    std::size_t chunk;
    std::uint64_t row;
  };

  Place place_of(std::uint64_t index) const noexcept {
    const std::uint64_t row = rows_.empty() ? index : rows_[static_cast<std::size_t>(index)];
    const auto chunk = static_cast<std::size_t>(std::ranges::upper_bound(begins_, row) - begins_.begin()) - 1;
    return {chunk, row - begins_[chunk]};
  }

  std::vector<FieldReaderPtr> chunks_;
  std::vector<std::uint64_t> rows_;
  Field field_;
  std::size_t sample_bytes_ = 0;
  std::vector<std::uint64_t> begins_;  ///< the first row of each chunk
  std::uint64_t total_ = 0;
};

class DrawsReader final : public FieldReader {
 public:
  DrawsReader(std::string name, std::vector<FieldReaderPtr> sources, const std::vector<std::uint64_t>& shares,
              std::uint64_t seed)
      : sources_(std::move(sources)), field_(sources_.front()->field()), seed_(seed) {
    field_.name = std::move(name);
    std::partial_sum(shares.begin(), shares.end(), std::back_inserter(ends_));
  }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return ends_.back(); }
  bool varies_by_epoch() const noexcept override { return true; }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_in_epoch(0, indices, destination, stores);
  }

  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind stores) const override {
    const std::size_t bytes = destination.size() / std::max<std::size_t>(indices.size(), 1);
    std::vector<std::optional<KeyedPermutation>> orders(sources_.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto s = static_cast<std::size_t>(std::ranges::upper_bound(ends_, indices[i]) - ends_.begin());
      // Another seed than that of the Loader's order, which may have as many samples.
      if (!orders[s]) orders[s].emplace(sources_[s]->sample_count(), seed_ + 1 + s, epoch);
      const std::uint64_t turn = indices[i] - (s == 0 ? 0 : ends_[s - 1]);
      const std::uint64_t row = (*orders[s])(turn % orders[s]->size());
      sources_[s]->gather({&row, 1}, destination.subspan(i * bytes, bytes), stores);
    }
  }

 private:
  std::vector<FieldReaderPtr> sources_;
  Field field_;
  std::vector<std::uint64_t> ends_;  ///< of each source's share
  std::uint64_t seed_;
};

void check_alike(const std::string& name, const std::vector<FieldReaderPtr>& chunks) {
  if (chunks.empty()) throw InvalidArgument(fmt::format("Field '{}' has no chunks.", name));
  const Field& first = chunks.front()->field();
  for (const FieldReaderPtr& chunk : chunks) {
    const Field& field = chunk->field();
    if (chunk->address(0) == nullptr || field.dtype != first.dtype || field.shape != first.shape) {
      throw InvalidArgument(fmt::format(
          "The chunks of field '{}' lie in memory or in mapped files, and their samples have one type and "
          "shape: {} of {}, and not {} of {}.",
          name, format_shape(first.shape), dtype_name(first.dtype), format_shape(field.shape),
          dtype_name(field.dtype)));
    }
  }
}

}  // namespace

FieldReaderPtr read_chunks(std::string name, std::vector<FieldReaderPtr> chunks,
                           std::vector<std::uint64_t> rows) {
  check_alike(name, chunks);
  const auto reader = std::make_shared<ChunksReader>(std::move(name), std::move(chunks), rows);
  const auto past = std::ranges::find_if(rows, [&](std::uint64_t row) { return row >= reader->total(); });
  if (past != rows.end()) {
    throw InvalidArgument(fmt::format("Row {} of field '{}' is past its end: it has {} rows.", *past,
                                      reader->field().name, reader->total()));
  }
  return reader;
}

FieldReaderPtr read_draws(std::string name, std::vector<FieldReaderPtr> sources,
                          const std::vector<std::uint64_t>& shares, std::uint64_t seed) {
  check_alike(name, sources);
  if (shares.size() != sources.size()) {
    throw InvalidArgument(fmt::format("Field '{}' has {} sources and {} shares: give one for each.", name,
                                      sources.size(), shares.size()));
  }
  return std::make_shared<DrawsReader>(std::move(name), std::move(sources), shares, seed);
}

}  // namespace penstock
