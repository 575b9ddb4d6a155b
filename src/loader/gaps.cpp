#include "loader/gaps.hpp"

#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

std::vector<std::size_t> fields_with_gaps(const Dataset& dataset, std::span<const std::size_t> kept) {
  std::vector<std::size_t> fields;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.is_strided(f) && !std::ranges::binary_search(kept, f)) fields.push_back(f);
  }
  return fields;
}

Dataset with_copies(const Dataset& dataset, std::span<const std::size_t> fields, HostWorkers& workers) {
  std::vector<FieldReaderPtr> readers;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    const bool copied = std::ranges::find(fields, f) != fields.end();
    readers.push_back(copied ? copy_field(dataset, f, &workers) : dataset.reader(f));
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
