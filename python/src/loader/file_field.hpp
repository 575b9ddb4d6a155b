#pragma once

#include <penstock/data/dataset.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

/// An array that a loader reads as the library does: in a file, in chunks, or decoded. It looks enough like
/// an array for code that asks for a dtype, a shape or one sample.
struct FileField {
  Dataset file;
  std::size_t field = 0;
};

/// The reader of the field, under another name. Null if `array` is not a FileField.
[[nodiscard]] std::shared_ptr<const FieldReader> read_file_field(const std::string& name, nb::handle array);

void bind_file_field(nb::module_& module);

}  // namespace penstock::python
