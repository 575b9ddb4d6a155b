#include "native_loader.hpp"

#include <penstock/core/dtype.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <sstream>
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

nb::dict state_dict(NativeLoader& self) {
  const SamplerState state = self.loader().state();
  nb::dict dict;
  dict["sample_count"] = state.sample_count;
  dict["seed"] = state.seed;
  dict["shuffle"] = state.shuffle;
  dict["order_version"] = state.order_version;
  dict["epoch"] = state.epoch;
  dict["consumed"] = state.consumed;
  return dict;
}

void load_state_dict(NativeLoader& self, const nb::dict& dict) {
  SamplerState state;
  state.sample_count = nb::cast<std::uint64_t>(dict["sample_count"]);
  state.seed = nb::cast<std::uint64_t>(dict["seed"]);
  state.shuffle = nb::cast<bool>(dict["shuffle"]);
  state.order_version = nb::cast<std::uint32_t>(dict["order_version"]);
  state.epoch = nb::cast<std::uint64_t>(dict["epoch"]);
  state.consumed = nb::cast<std::uint64_t>(dict["consumed"]);
  const nb::gil_scoped_release unlocked;
  self.loader().restore(state);
}

void bind_statistics(nb::module_& module) {
  using S = FeedStatistics;
  nb::class_<S>(module, "LoaderStatistics",
                "What a Loader did, and where its time went. Seconds are wall time; stages overlap.")
      .def_ro("epochs", &S::epochs)
      .def_ro("batches", &S::batches)
      .def_ro("samples", &S::samples)
      .def_ro("delivered_bytes", &S::delivered_bytes)
      .def_ro("link_bytes", &S::link_bytes)
      .def_ro("resident_bytes", &S::resident_bytes)
      .def_ro("resident_seconds", &S::resident_seconds)
      .def_ro("seconds", &S::seconds)
      .def_ro("gather_seconds", &S::gather_seconds)
      .def_ro("slot_wait_seconds", &S::slot_wait_seconds)
      .def_ro("timed_batches", &S::timed_batches)
      .def_ro("transfer_seconds", &S::transfer_seconds)
      .def_ro("kernel_seconds", &S::kernel_seconds)
      .def_ro("compute_seconds", &S::compute_seconds)
      .def_ro("stall_seconds", &S::stall_seconds)
      .def_ro("exposed_transfer_seconds", &S::exposed_transfer_seconds)
      .def_ro("exposed_kernel_seconds", &S::exposed_kernel_seconds)
      .def_ro("exposed_gather_seconds", &S::exposed_gather_seconds)
      .def_ro("mean_ready", &S::mean_ready)
      .def_ro("prefetch_depth", &S::prefetch_depth)
      .def_ro("slots", &S::slots)
      .def_ro("ring_bytes", &S::ring_bytes)
      .def_ro("link_ceiling", &S::link_ceiling)
      .def_ro("sample_bytes", &S::sample_bytes)
      .def_prop_ro("samples_per_second", &S::samples_per_second)
      .def_prop_ro("link_gbps", &S::link_gbps)
      .def_prop_ro("delivered_gbps", &S::delivered_gbps)
      .def_prop_ro("link_efficiency", &S::link_efficiency)
      .def_prop_ro("transfer_gbps", &S::transfer_gbps)
      .def_prop_ro("stall_share", &S::stall_share)
      .def_prop_ro("transfer_share", &S::transfer_share)
      .def_prop_ro("kernel_share", &S::kernel_share)
      .def_prop_ro("gather_share", &S::gather_share)
      .def_prop_ro("stall_other_seconds", &S::stall_other_seconds)
      .def_prop_ro("limited_by", [](const S& s) { return std::string(feed_limit_name(s.limited_by())); })
      .def("sentence", &S::sentence, "What sets the pace, with figures of the table, and what to do next.")
      .def("__str__", [](const S& statistics) {
        std::ostringstream text;
        text << statistics;
        return text.str();
      });
  using T = BatchTimes;
  nb::class_<T>(module, "BatchTimes",
                "When the stages of one batch began and ended, in seconds on one clock.")
      .def_ro("epoch", &T::epoch)
      .def_ro("batch", &T::batch)
      .def_ro("samples", &T::samples)
      .def_ro("link_bytes", &T::link_bytes)
      .def_ro("gather_begin", &T::gather_begin)
      .def_ro("gather_end", &T::gather_end)
      .def_ro("transfer_begin", &T::transfer_begin)
      .def_ro("transfer_end", &T::transfer_end)
      .def_ro("asked", &T::asked)
      .def_ro("arrived", &T::arrived);
}

}  // namespace

void bind_loader(nb::module_& module) {
  bind_statistics(module);
  nb::class_<NativeLoader>(module, "NativeLoader", "The C++ loader; use penstock.Loader.")
      .def(
          "__init__",
          [](NativeLoader* self, std::shared_ptr<Engine> engine, const NativeLoader::Arrays& fields,
             const std::vector<FieldTuple>& field_tuples, std::uint64_t batch_size, bool shuffle,
             std::uint64_t seed, bool drop_last, std::uint64_t rank, std::uint64_t world_size,
             std::size_t prefetch_depth, const std::string& residency, const std::string& gather,
             unsigned gather_blocks, bool narrow, std::size_t device_budget_bytes, unsigned threads,
             const std::string& when_full) {
            LoaderOptions options;
            options.batch_size = batch_size;
            options.shuffle = shuffle;
            options.seed = seed;
            options.drop_last = drop_last;
            options.shard = {rank, world_size, drop_last};
            options.prefetch_depth = prefetch_depth;
            options.residency = Residency::parse(residency);
            options.gather = parse_gather_path(gather);
            options.gather_blocks = gather_blocks;
            options.fields = field_options(field_tuples);
            options.narrow = narrow;
            options.device_budget_bytes = device_budget_bytes;
            options.threads = threads;
            options.when_full = parse_when_full(when_full);
            new (self) NativeLoader(std::move(engine), fields, std::move(options));
          },
          nb::arg("engine"), nb::arg("fields"), nb::arg("field_options"), nb::kw_only(),
          nb::arg("batch_size"), nb::arg("shuffle"), nb::arg("seed"), nb::arg("drop_last"), nb::arg("rank"),
          nb::arg("world_size"), nb::arg("prefetch_depth"), nb::arg("residency"), nb::arg("gather"),
          nb::arg("gather_blocks"), nb::arg("narrow"), nb::arg("device_budget_bytes"), nb::arg("threads"),
          nb::arg("when_full"))
      .def("next", &NativeLoader::next, "One array for each field; None at the end of an epoch.")
      .def("start_epoch",
           [](NativeLoader& self, std::uint64_t epoch) {
             const nb::gil_scoped_release unlocked;
             self.loader().start_epoch(epoch);
           })
      .def("state_dict", &state_dict)
      .def("load_state_dict", &load_state_dict, nb::arg("state"))
      .def("stats", [](NativeLoader& self) { return self.loader().stats(); })
      .def("timeline", [](NativeLoader& self) { return self.loader().timeline(); })
      .def("describe", [](NativeLoader& self) { return self.loader().describe(); })
      .def_prop_ro("batches_per_epoch", [](NativeLoader& self) { return self.loader().batches_per_epoch(); })
      .def_prop_ro("samples_per_epoch", [](NativeLoader& self) { return self.loader().samples_per_epoch(); })
      .def("batches_left", [](NativeLoader& self) { return self.loader().batches_left(); })
      .def("close", &NativeLoader::close);
  module.def(
      "can_widen",
      [](const std::string& from, const std::string& to) {
        return can_widen(parse_dtype(from), parse_dtype(to));
      },
      nb::arg("from_dtype"), nb::arg("to_dtype"), "Whether a Loader can deliver one dtype as the other.");
}

}  // namespace penstock::python
