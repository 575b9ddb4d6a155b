#include "loader/sampler_state.hpp"

#include <penstock/data/sampler.hpp>

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace penstock::python {
namespace {

constexpr std::uint64_t kBlockSamples = 4096;

nb::bytes next_block(Sampler& sampler) {
  std::vector<std::uint64_t> indices(std::min(sampler.samples_left(), kBlockSamples));
  const std::size_t count = sampler.next(indices);
  return nb::bytes(indices.data(), count * sizeof(std::uint64_t));
}

template <typename State, typename Visit>
void for_each_member(State& state, const Visit& visit) {
  visit("sample_count", state.sample_count);
  visit("seed", state.seed);
  visit("shuffle", state.shuffle);
  visit("order_version", state.order_version);
  visit("epoch", state.epoch);
  visit("consumed", state.consumed);
}

}  // namespace

nb::dict to_dict(const SamplerState& state) {
  nb::dict dict;
  for_each_member(state, [&](const char* name, const auto& value) { dict[name] = value; });
  return dict;
}

SamplerState sampler_state(const nb::dict& dict) {
  SamplerState state;
  for_each_member(state, [&](const char* name, auto& value) {
    value = nb::cast<std::remove_reference_t<decltype(value)>>(dict[name]);
  });
  return state;
}

void bind_sampler(nb::module_& module) {
  nb::class_<Sampler>(module, "NativeSampler", "The C++ sampler; use penstock.Sampler.")
      .def(
          "__init__",
          [](Sampler* self, std::uint64_t sample_count, bool shuffle, std::uint64_t seed, bool drop_last,
             std::uint64_t rank, std::uint64_t world_size) {
            new (self) Sampler(sample_count, {.shuffle = shuffle,
                                              .seed = seed,
                                              .batch_size = kBlockSamples,
                                              .shard = {rank, world_size, drop_last}});
          },
          nb::kw_only(), nb::arg("sample_count"), nb::arg("shuffle"), nb::arg("seed"), nb::arg("drop_last"),
          nb::arg("rank"), nb::arg("world_size"))
      .def("next", &next_block,
           "The next samples' indices, as the bytes of int64 numbers. Empty at the epoch's end.")
      .def("state_dict", [](const Sampler& self) { return to_dict(self.state()); })
      .def(
          "load_state_dict", [](Sampler& self, const nb::dict& state) { self.restore(sampler_state(state)); },
          nb::arg("state"))
      .def_prop_ro("samples_per_epoch", &Sampler::samples_per_epoch)
      .def_prop_ro("samples_left", &Sampler::samples_left);
}

}  // namespace penstock::python
