#include "loader/read_all.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/loader/share_dataset.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

namespace {

/// A multiple of every page size: no page has two fields, so that each can be locked by itself.
constexpr std::size_t kFieldAlignment = std::size_t{64} << 10;

struct PlacedField {
  Field field;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

std::vector<PlacedField> place_fields(const Dataset& dataset) {
  std::vector<PlacedField> placed;
  std::size_t end = 0;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    std::size_t bytes = 0;
    const bool fits = !__builtin_mul_overflow(dataset.sample_bytes(f), dataset.sample_count(), &bytes) &&
                      bytes <= host_topology().memory_bytes && end <= host_topology().memory_bytes - bytes;
    if (!fits) {
      throw OutOfMemory(fmt::format("host memory, for field '{}' of a shared dataset", dataset.field(f).name),
                        bytes, end, host_topology().memory_bytes,
                        "A shared dataset lies in memory as a whole; a Loader reads larger ones from files.");
    }
    placed.push_back({dataset.field(f), end, bytes});
    end = align_up(end + bytes, kFieldAlignment);
  }
  return placed;
}

/// What the other processes need to know, as CBOR: the user's note is bytes of any kind.
std::string describe_fields(const std::vector<PlacedField>& placed, std::string_view note) {
  nlohmann::json fields = nlohmann::json::array();
  for (const auto& [field, offset, bytes] : placed) {
    nlohmann::json entry = {{"name", field.name},
                            {"dtype", dtype_name(field.dtype)},
                            {"shape", field.shape},
                            {"offset", offset},
                            {"bytes", bytes}};
    if (field.narrowed_from) entry["narrowed_from"] = dtype_name(*field.narrowed_from);
    fields.push_back(std::move(entry));
  }
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(note.data());
  const nlohmann::json all = {{"fields", std::move(fields)},
                              {"note", nlohmann::json::binary({begin, begin + note.size()})}};
  std::string text;
  nlohmann::json::to_cbor(all, text);
  return text;
}

SharedDataset read_description(CommonPages common) {
  const auto pages = std::make_shared<const CommonPages>(std::move(common));
  const std::span<const std::byte> bytes = pages->pages->bytes();
  const auto all = nlohmann::json::from_cbor(pages->note);
  std::vector<FieldReaderPtr> readers;
  for (const auto& entry : all.at("fields")) {
    Field field{.name = entry.at("name"),
                .dtype = parse_dtype(entry.at("dtype").get<std::string>()),
                .shape = entry.at("shape").get<Shape>()};
    if (entry.contains("narrowed_from"))
      field.narrowed_from = parse_dtype(entry.at("narrowed_from").get<std::string>());
    const auto offset = entry.at("offset").get<std::size_t>();
    const auto count = entry.at("bytes").get<std::size_t>();
    if (offset > bytes.size() || count > bytes.size() - offset)
      throw Error("The shared pages are smaller than the fields in them.");
    readers.push_back(read_array(std::move(field), bytes.subspan(offset, count), pages));
  }
  const auto& note = all.at("note").get_binary();
  return {Dataset(std::move(readers)), {note.begin(), note.end()}, pages};
}

MadePages fill_pages(const MadeDataset& made, const std::function<void()>& between) {
  const std::vector<PlacedField> placed = place_fields(made.dataset);
  const auto pages = std::make_shared<const SharedPages>(placed.back().offset + placed.back().bytes);
  interleave_memory(pages->bytes().data(), pages->bytes().size());
  const std::size_t threads = std::min(HostWorkersOptions::kMostThreads, host_topology().processors);
  HostWorkers workers({.threads = threads, .on_start = {}});
  for (std::size_t f = 0; f < placed.size(); ++f)
    read_all(made.dataset, f, pages->bytes().data() + placed[f].offset, workers, between);
  return {pages, describe_fields(placed, made.note)};
}

}  // namespace

SharedDataset share_dataset(const ShareOptions& options, FunctionRef<MadeDataset()> make) {
  return read_description(share_pages(options, [&] { return fill_pages(make(), options.while_waiting); }));
}

}  // namespace penstock
