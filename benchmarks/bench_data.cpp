#include <penstock/core/bytes.hpp>
#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/data/sampler.hpp>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

// Rates of the CPU's share of feeding: choosing the samples, and gathering their bytes. One thread each.
namespace {

using namespace penstock;

constexpr std::size_t kDatasetBytes = std::size_t{512} << 20;  // far past any cache
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

const std::vector<std::uint8_t>& dataset_bytes() {
  static const std::vector<std::uint8_t> bytes = [] {
    std::vector<std::uint8_t> filled(kDatasetBytes);
    std::iota(filled.begin(), filled.end(), 0);
    return filled;
  }();
  return bytes;
}

FieldReaderPtr array_of(std::size_t sample_bytes) {
  const std::size_t whole = kDatasetBytes / sample_bytes * sample_bytes;
  return read_array({"x", DType::uint8, {sample_bytes}},
                    std::as_bytes(std::span(dataset_bytes())).first(whole), nullptr);
}

void sampler_fill(benchmark::State& state) {
  const auto samples = static_cast<std::uint64_t>(state.range(0));
  const auto batch = static_cast<std::size_t>(state.range(1));
  const KeyedPermutation order(samples, 1, 2);
  std::vector<std::uint64_t> indices(batch);
  std::uint64_t position = 0;
  for (auto _ : state) {
    order.fill(position, 1, indices);
    benchmark::DoNotOptimize(indices.data());
    position = (position + batch) % samples;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
}
BENCHMARK(sampler_fill)
    ->ArgNames({"samples", "batch"})
    ->ArgsProduct({{60000, 1 << 24, (1 << 24) + 1, 1000000000000}, {256, 4096}});

void gather_from(benchmark::State& state, const Dataset& dataset, StoreKind stores) {
  const std::size_t batch = std::max<std::size_t>(1, kBatchBytes / dataset.sample_bytes());
  const KeyedPermutation order(dataset.sample_count(), 1, 2);
  std::vector<std::uint64_t> indices(batch);
  std::unique_ptr<std::byte, decltype(&std::free)> slot(
      static_cast<std::byte*>(std::aligned_alloc(4096, align_up(batch * dataset.sample_bytes(), 4096))),
      &std::free);
  const std::span<std::byte> destination(slot.get(), batch * dataset.sample_bytes());
  std::uint64_t position = 0;
  for (auto _ : state) {
    order.fill(position, 1, indices);
    dataset.gather(0, indices, destination, stores);
    position = (position + batch) % dataset.sample_count();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(destination.size()));
}

void gather_memory(benchmark::State& state) {
  const Dataset dataset({array_of(static_cast<std::size_t>(state.range(0)))});
  gather_from(state, dataset, state.range(1) != 0 ? StoreKind::streaming : StoreKind::cached);
}
BENCHMARK(gather_memory)
    ->ArgNames({"sample_bytes", "streaming"})
    ->ArgsProduct({{8, 64, 256, 784, 1024, 4096, 150528}, {0, 1}});

void gather_file(benchmark::State& state) {
  const auto path = std::filesystem::temp_directory_path() / ("penstock-bench-" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(dataset_bytes().data()),
             static_cast<std::streamsize>(kDatasetBytes));
  const auto sample_bytes = static_cast<std::size_t>(state.range(0));
  const Dataset dataset(
      {read_raw(path, {"x", DType::uint8, {sample_bytes}}, kDatasetBytes % sample_bytes, {0})});
  std::filesystem::remove(path);
  gather_from(state, dataset, StoreKind::cached);
}
BENCHMARK(gather_file)->ArgName("sample_bytes")->Arg(256)->Arg(4096)->Arg(150528);

void narrow_scan(benchmark::State& state) {
  const Dataset dataset(
      {read_array({"x", DType::int64, {}}, std::vector<std::int64_t>(kDatasetBytes / 8, 200))});
  for (auto _ : state) benchmark::DoNotOptimize(narrowest_dtype(dataset, 0, nullptr));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kDatasetBytes));
}
BENCHMARK(narrow_scan);

void narrow_gather(benchmark::State& state) {
  const auto elements = static_cast<std::size_t>(state.range(0));
  const std::vector<std::int64_t> values(kDatasetBytes / 8, 200);
  const auto wide = read_array({"x", DType::int64, {elements}}, std::as_bytes(std::span(values)), nullptr);
  gather_from(state, Dataset({narrow_field(wide, DType::uint16)}), StoreKind::cached);
}
BENCHMARK(narrow_gather)->ArgName("elements")->Arg(1)->Arg(1024);

}  // namespace

BENCHMARK_MAIN();
