#include "data/malformed.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/dataset.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock {

struct Dataset::State {
  std::vector<std::shared_ptr<const FieldReader>> readers;
  std::vector<std::size_t> sample_bytes;
  std::size_t all_bytes = 0;
  std::uint64_t sample_count = 0;

  const FieldReader& at(std::size_t field) const {
    if (field >= readers.size()) {
      throw InvalidArgument(fmt::format("Field {} was asked for; the dataset has {} fields, counted from 0.",
                                        field, readers.size()));
    }
    return *readers[field];
  }
};

namespace {

std::vector<std::string> names_of(const std::vector<std::shared_ptr<const FieldReader>>& readers) {
  std::vector<std::string> names;
  names.reserve(readers.size());
  for (const auto& reader : readers) names.push_back(reader->field().name);
  return names;
}

void check_names(const std::vector<std::string>& names) {
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (name.empty()) throw InvalidArgument("A dataset has a field without a name: give each field one.");
    if (!seen.insert(name).second) {
      throw InvalidArgument(
          fmt::format("Two fields of a dataset are called '{}': give each its own name.", name));
    }
  }
}

void check_lengths(const std::vector<std::shared_ptr<const FieldReader>>& readers) {
  std::vector<std::string> lengths;
  bool same = true;
  for (const auto& reader : readers) {
    lengths.push_back(fmt::format("'{}' has {}", reader->field().name, reader->sample_count()));
    same = same && reader->sample_count() == readers.front()->sample_count();
  }
  if (!same) {
    throw InvalidArgument(
        fmt::format("The fields of a dataset have different numbers of samples: {}. Each sample needs all "
                    "fields.",
                    fmt::join(lengths, ", ")));
  }
}

[[noreturn]] void throw_past_end(const Field& field, std::span<const std::uint64_t> indices,
                                 std::uint64_t sample_count) {
  const auto past = std::find_if(indices.begin(), indices.end(),
                                 [&](std::uint64_t index) { return index >= sample_count; });
  throw InvalidArgument(fmt::format("Sample {} of field '{}' was asked for; there are {}, counted from 0.",
                                    *past, field.name, sample_count));
}

}  // namespace

std::size_t Field::sample_bytes() const {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(element_count(shape), dtype_bytes(dtype), &bytes)) {
    throw InvalidArgument(fmt::format("A sample of field '{}', {} of {}, does not fit the address space.",
                                      name, format_shape(shape), dtype_name(dtype)));
  }
  return bytes;
}

const std::byte* FieldReader::address(std::uint64_t index) const noexcept {
  const auto all = memory();
  return all.empty() ? nullptr : all.data() + index * field().sample_bytes();
}

Dataset::Dataset(std::vector<std::shared_ptr<const FieldReader>> readers) {
  if (readers.empty()) throw InvalidArgument("A dataset without fields was asked for: give it at least one.");
  if (std::find(readers.begin(), readers.end(), nullptr) != readers.end()) {
    throw InvalidArgument("A dataset was given a null reader.");
  }
  check_names(names_of(readers));
  check_lengths(readers);
  auto state = std::make_shared<State>();
  state->sample_count = readers.front()->sample_count();
  if (state->sample_count == 0)
    throw InvalidArgument("The dataset holds zero samples: there is nothing to feed.");
  for (const auto& reader : readers) {
    const std::size_t bytes = reader->field().sample_bytes();
    if (bytes == 0) throw_zero_bytes(reader->field());
    if (__builtin_add_overflow(state->all_bytes, bytes, &state->all_bytes)) {
      throw InvalidArgument("A sample of the dataset does not fit the address space.");
    }
    state->sample_bytes.push_back(bytes);
  }
  state->readers = std::move(readers);
  state_ = std::move(state);
}

std::uint64_t Dataset::sample_count() const noexcept { return state_->sample_count; }

std::size_t Dataset::field_count() const noexcept { return state_->readers.size(); }

const Field& Dataset::field(std::size_t field) const { return state_->at(field).field(); }

std::size_t Dataset::field_index(std::string_view name) const {
  const auto& readers = state_->readers;
  const auto found = std::find_if(readers.begin(), readers.end(),
                                  [&](const auto& reader) { return reader->field().name == name; });
  if (found == readers.end()) {
    throw InvalidArgument(
        fmt::format("The dataset has no field '{}'; it has: {}.", name, fmt::join(names_of(readers), ", ")));
  }
  return static_cast<std::size_t>(found - readers.begin());
}

std::size_t Dataset::sample_bytes(std::size_t field) const {
  static_cast<void>(state_->at(field));
  return state_->sample_bytes[field];
}

std::size_t Dataset::sample_bytes() const noexcept { return state_->all_bytes; }

void Dataset::gather(std::size_t field, std::span<const std::uint64_t> indices,
                     std::span<std::byte> destination, StoreKind stores, std::uint64_t epoch) const {
  const FieldReader& reader = state_->at(field);
  const std::size_t bytes = state_->sample_bytes[field];
  if (destination.size() % bytes != 0 || destination.size() / bytes != indices.size()) {
    throw InvalidArgument(
        fmt::format("{} samples of field '{}' have {} bytes each; the destination has {} in all.",
                    indices.size(), reader.field().name, bytes, destination.size()));
  }
  std::uint64_t largest = 0;
  for (const std::uint64_t index : indices) largest = std::max(largest, index);
  if (largest >= state_->sample_count) throw_past_end(reader.field(), indices, state_->sample_count);
  reader.gather_in_epoch(epoch, indices, destination, stores);
}

std::span<const std::byte> Dataset::memory(std::size_t field) const { return state_->at(field).memory(); }

bool Dataset::is_strided(std::size_t field) const { return state_->at(field).is_strided(); }

std::span<const std::byte> Dataset::allocation(std::size_t field) const {
  return state_->at(field).allocation();
}

bool Dataset::is_file_mapping(std::size_t field) const { return state_->at(field).is_file_mapping(); }

const std::shared_ptr<const FieldReader>& Dataset::reader(std::size_t field) const {
  static_cast<void>(state_->at(field));
  return state_->readers[field];
}

bool decodes(const Dataset& dataset) noexcept {
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.reader(f)->is_decoded()) return true;
  }
  return false;
}

}  // namespace penstock
