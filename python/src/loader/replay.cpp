#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "loader/native_loader.hpp"

#include <penstock/core/error.hpp>
#include <penstock/loader/replay.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

std::shared_ptr<ReplayRows> make_rows(const std::vector<std::tuple<std::string, std::string, Shape>>& given,
                                      std::uint64_t capacity, std::optional<int> file) {
  std::vector<Field> fields;
  for (const auto& [name, dtype, shape] : given) fields.push_back({name, parse_dtype(dtype), shape});
  return std::make_shared<ReplayRows>(fields, capacity, file);
}

// `arrays`: NumPy's, one for each field, with a row for each environment.
void add_rows(ReplayRows& rows, const std::vector<nb::object>& arrays,
              const std::vector<std::uint32_t>& environments) {
  const Dataset& dataset = rows.dataset();
  std::vector<const std::byte*> values;
  for (const nb::object& array : arrays) {
    Leaf leaf;
    const std::size_t f = values.size();
    if (f == dataset.field_count() || !read_exactly(leaf, array.ptr()) ||
        leaf.bytes != environments.size() * dataset.sample_bytes(f)) {
      throw InvalidArgument("the arrays are not of these rows");
    }
    values.push_back(leaf.data);
  }
  if (values.size() != dataset.field_count()) throw InvalidArgument("the rows have other fields");
  const Unlocked unlocked;
  rows.add(values, environments);
}

NativeLoader* sample(const std::shared_ptr<ReplayRows>& rows, const EngineDestination& destination,
                     std::uint64_t batch_size, const std::optional<std::vector<std::int64_t>>& offsets,
                     std::uint64_t seed) {
  ReplayOptions options{.batch_size = batch_size, .seed = seed};
  if (offsets) options.offsets = *offsets;
  return new NativeLoader(destination, rows->dataset(), sample_rows(rows, options),
                          offsets ? offsets->size() : 0);
}

}  // namespace

void bind_replay(nb::module_& module) {
  nb::class_<ReplayRows>(module, "ReplayRows", "The C++ side of penstock.ReplayBuffer.")
      .def(nb::new_(&make_rows), nb::arg("fields"), nb::arg("capacity"), nb::arg("file") = nb::none())
      .def("add", &add_rows, nb::arg("arrays"), nb::arg("environments"))
      .def("sample", &sample, nb::rv_policy::take_ownership, nb::arg("destination"), nb::arg("batch_size"),
           nb::arg("offsets").none(), nb::arg("seed"))
      .def("__len__", &ReplayRows::size)
      .def_prop_ro("file", [](const ReplayRows& self) { return self.pages().file(); });
}

}  // namespace penstock::python
