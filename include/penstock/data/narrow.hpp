#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>

#include <cstddef>

namespace penstock {

/// The smallest of uint8, uint16, uint32 and the field's own type that holds every value of `field`. Floats,
/// booleans, and fields with a negative value keep their own type. Blocks the host for one pass over the
/// data; `workers` may be null. Throws what reading throws.
[[nodiscard]] DType narrowest_dtype(const Dataset& dataset, std::size_t field, HostWorkers* workers);

struct NarrowOptions {
  /// A field of at most this many narrowed bytes is kept as a narrowed copy in memory, which a device can
  /// read directly. A larger one is narrowed in each gather.
  std::size_t copy_limit = std::size_t{64} << 20;
  /// Splits the reading. May be null; used only during the call.
  HostWorkers* workers = nullptr;
};

/// The same dataset with each integer field in its narrowest dtype, so that fewer bytes cross the link.
/// Widening to `Field::narrowed_from` restores every value exactly. A field that cannot get narrower keeps
/// its reader. Values are checked again whenever they are narrowed. If a value no longer fits, reading throws
/// Error that names the sample.
[[nodiscard]] Dataset narrow_integers(const Dataset& dataset, const NarrowOptions& options = {});

/// Reads one field as `dtype`, an unsigned integer type narrower than the field's own. The reader's memory()
/// is empty. Throws InvalidArgument for other types.
[[nodiscard]] std::shared_ptr<const FieldReader> narrow_field(std::shared_ptr<const FieldReader> wide,
                                                              DType dtype);

/// A copy of one field, whose samples lie side by side in memory. Blocks the host; `workers` may be null, and
/// splits the reading. Throws what reading throws.
[[nodiscard]] std::shared_ptr<const FieldReader> copy_field(const Dataset& dataset, std::size_t field,
                                                            HostWorkers* workers);

}  // namespace penstock
