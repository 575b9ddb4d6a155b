#include "feed/tensor_watch.hpp"
#include "loader/native_loader.hpp"
#include "loader/python_batch_sampler.hpp"
#include "loader/sampler_state.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/dtype.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <utility>

namespace penstock::python {
namespace {

// name, to, scale, shift, channel axis
using FieldTuple =
    std::tuple<std::string, std::optional<std::string>, std::vector<float>, std::vector<float>, std::size_t>;

std::vector<FieldOptions> field_options(const std::vector<FieldTuple>& fields) {
  std::vector<FieldOptions> options;
  for (const auto& [name, to, scale, shift, channel_axis] : fields) {
    FieldOptions field;
    field.name = name;
    if (to) field.to = parse_dtype(*to);
    field.scale = scale;
    field.shift = shift;
    field.channel_axis = channel_axis;
    options.push_back(std::move(field));
  }
  return options;
}

void make_native(NativeLoader* self, const EngineDestination& destination, const NativeLoader::Arrays& fields,
                 const std::vector<FieldTuple>& field_tuples, std::uint64_t batch_size, bool shuffle,
                 std::uint64_t seed, bool drop_last, const nb::object& batch_sampler, std::uint64_t rank,
                 std::uint64_t world_size, std::size_t prefetch_depth, const std::string& residency,
                 const std::string& gather, unsigned gather_blocks, bool narrow, bool data_may_change,
                 std::size_t device_budget_bytes, const std::optional<std::string>& memory,
                 std::size_t row_budget_bytes, unsigned threads, const std::string& when_full) {
  LoaderOptions options;
  options.batch_size = batch_size;
  options.shuffle = shuffle;
  options.seed = seed;
  options.drop_last = drop_last;
  if (!batch_sampler.is_none()) options.batch_sampler = std::make_shared<PythonBatchSampler>(batch_sampler);
  options.shard = {rank, world_size, drop_last};
  options.prefetch_depth = prefetch_depth;
  options.residency = Residency::parse(residency);
  options.gather = parse_gather_path(gather);
  options.gather_blocks = gather_blocks;
  options.fields = field_options(field_tuples);
  options.narrow = narrow;
  options.data_may_change = data_may_change;
  options.device_budget_bytes = device_budget_bytes;
  if (memory) options.memory_bytes = parse_bytes(*memory);
  options.row_budget_bytes = row_budget_bytes;
  options.threads = threads;
  options.when_full = parse_when_full(when_full);
  new (self) NativeLoader(destination, make_dataset(fields), std::move(options));
}

bool next_into(NativeLoader& self, nb::list made, const TensorWatch* watch) {
  if (watch != nullptr && !watch->unchanged()) return false;
  made.append(self.next());
  return true;
}

}  // namespace

void bind_loader(nb::module_& module) {
  nb::class_<NativeLoader>(module, "NativeLoader", "The C++ loader; use penstock.Loader.")
      .def("__init__", &make_native, nb::arg("destination"), nb::arg("fields"), nb::arg("field_options"),
           nb::kw_only(), nb::arg("batch_size"), nb::arg("shuffle") = false, nb::arg("seed") = 0,
           nb::arg("drop_last") = false, nb::arg("batch_sampler").none(), nb::arg("rank") = 0,
           nb::arg("world_size") = 1, nb::arg("prefetch_depth"), nb::arg("residency") = "none",
           nb::arg("gather"), nb::arg("gather_blocks") = 0, nb::arg("narrow") = true,
           nb::arg("data_may_change"), nb::arg("device_budget_bytes"), nb::arg("memory") = nb::none(),
           nb::arg("row_budget_bytes") = 0, nb::arg("threads") = 0, nb::arg("when_full"))
      .def("start_epoch", &NativeLoader::start_epoch, nb::arg("epoch"))
      .def("next_into", &next_into, nb::arg("made"), nb::arg("watch") = nb::none(),
           "Appends the next batch, or None at the end of an epoch. False, without a batch, if a tensor of "
           "`watch` has changed. No signal's handler comes between taking the batch and appending it.")
      .def("leave_epoch", &NativeLoader::leave_epoch,
           "Blocks until nothing reads the data any more, before an epoch is started.")
      .def(
          "state_dict", [](NativeLoader& self, bool handed_out) { return to_dict(self.state(handed_out)); },
          nb::arg("handed_out") = true,
          "The place after the batches that were given: before the latest one if it is not `handed_out`.")
      .def(
          "load_state_dict",
          [](NativeLoader& self, const nb::dict& state) { self.restore(sampler_state(state)); },
          nb::arg("state"))
      .def("stats", [](NativeLoader& self) { return self->stats(); })
      .def(
          "member_stats", [](NativeLoader& self, std::size_t member) { return self->member_stats(member); },
          nb::arg("member"), "The account of a device's own parts.")
      .def("timeline", [](NativeLoader& self) { return self->timeline(); })
      .def("describe", [](NativeLoader& self) { return self->describe(); })
      .def_prop_ro("batches_per_epoch", [](NativeLoader& self) { return self->batches_per_epoch(); })
      .def_prop_ro("samples_per_epoch", [](NativeLoader& self) { return self->samples_per_epoch(); })
      .def("close", &NativeLoader::close);

  module.def("default_row_budget", &LoaderOptions::default_row_budget, nb::arg("host_bytes"),
             "The bytes of rows that a loader makes at most on a host with so much memory.");
  module.def(
      "can_widen",
      [](const std::string& from, const std::string& to) {
        return can_widen(parse_dtype(from), parse_dtype(to));
      },
      nb::arg("from_dtype"), nb::arg("to_dtype"), "True if a Loader can deliver one dtype as the other.");
}

}  // namespace penstock::python
