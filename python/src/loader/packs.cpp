#include "loader/packs.hpp"

#include "interpreter_lock.hpp"
#include "loader/file_field.hpp"

#include <penstock/data/packs.hpp>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

// name, dtype, shape of a value, addresses of the samples and their bytes (both of 64 bits), owner
using RaggedTuple =
    std::tuple<std::string, std::string, std::vector<std::size_t>, nb::bytes, nb::bytes, nb::object>;

std::span<const std::uint64_t> numbers(const nb::bytes& bytes) {
  return {static_cast<const std::uint64_t*>(bytes.data()), bytes.size() / sizeof(std::uint64_t)};
}

RaggedField ragged_field(const RaggedTuple& given) {
  const auto& [name, dtype, shape, begins, bytes, owner] = given;
  RaggedField ragged{.field = {.name = name, .dtype = parse_dtype(dtype), .shape = shape},
                     .samples = {},
                     .keep_alive = keep_alive(owner)};
  const auto sizes = numbers(bytes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ragged.samples.emplace_back(reinterpret_cast<const std::byte*>(numbers(begins)[i]), sizes[i]);
  }
  return ragged;
}

std::pair<std::shared_ptr<const Packing>, std::vector<FileField>> pack(const std::vector<RaggedTuple>& given,
                                                                       std::size_t values,
                                                                       std::size_t samples, bool shuffle,
                                                                       std::uint64_t seed, bool drop_last) {
  std::vector<RaggedField> fields;
  for (const RaggedTuple& one : given) fields.push_back(ragged_field(one));
  const Unlocked unlocked;
  const auto packing = std::make_shared<const Packing>(
      fields,
      PackOptions{
          .values = values, .samples = samples, .shuffle = shuffle, .seed = seed, .drop_last = drop_last});
  const Dataset packs(read_packs(std::move(fields), packing));
  std::vector<FileField> packed;
  for (std::size_t field = 0; field < packs.field_count(); ++field) packed.push_back({packs, field});
  return {packing, std::move(packed)};
}

}  // namespace

void bind_packs(nb::module_& module) {
  nb::class_<Packing>(module, "Packing", "How samples of different lengths are put together: see Loader.")
      .def_prop_ro("most_samples", &Packing::most_samples)
      .def(
          "longest",
          [](const Packing& self, std::uint64_t epoch, std::uint64_t pack) {
            return self.plan(epoch)->packs.at(static_cast<std::size_t>(pack)).longest;
          },
          nb::arg("epoch"), nb::arg("pack"), "The values of the longest sample of a pack.")
      .def("describe", &Packing::describe, nb::arg("epoch"), nb::call_guard<Unlocked>());
  module.def("pack", &pack, nb::arg("fields"), nb::arg("values"), nb::arg("samples"), nb::arg("shuffle"),
             nb::arg("seed"), nb::arg("drop_last"), "A Packing and its fields: see read_packs.");
}

}  // namespace penstock::python
