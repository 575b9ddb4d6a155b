#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>

#include <cstddef>

namespace penstock {

/// The smallest of uint8, uint16, uint32 and the field's own type that holds every value of `field`, found by
/// reading all of them; the field's own type for floats, booleans and where a value is negative. `workers`
/// may be null. Blocks the host for one pass over the data; throws what reading throws.
[[nodiscard]] DType narrowest_dtype(const Dataset& dataset, std::size_t field, HostWorkers* workers);

struct NarrowOptions {
  /// A narrowed field of at most this many bytes is kept as a narrowed copy in memory, which a device can
  /// read directly; a larger one is narrowed in each gather.
  std::size_t copy_limit = std::size_t{64} << 20;
  /// Splits the reading. May be null; used only during the call.
  HostWorkers* workers = nullptr;
};

/// The same dataset with each integer field in its narrowest dtype: fewer bytes on the link, and widening to
/// `Field::narrowed_from` restores every value exactly. A field that cannot get narrower keeps its reader.
/// Values are checked again whenever they are narrowed: a source that changes its mind is an Error that names
/// the sample, never a wrong value.
[[nodiscard]] Dataset narrow_integers(const Dataset& dataset, const NarrowOptions& options = {});

/// One field read as `dtype`, an unsigned integer narrower than its own type. The reader's memory() is empty.
/// Throws InvalidArgument for other types.
[[nodiscard]] std::shared_ptr<const FieldReader> narrow_field(std::shared_ptr<const FieldReader> wide,
                                                              DType dtype);

}  // namespace penstock
