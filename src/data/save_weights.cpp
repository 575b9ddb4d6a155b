#include "data/safetensors.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/save_weights.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>

namespace penstock {

namespace {

constexpr std::size_t kLengthSize = 8;

// Of the first tensor in the file: disks then write tensors whose sizes are whole blocks straight to where
// load_weights wants them (see BulkReader).
constexpr std::size_t kDataAlignment = 4096;

std::size_t element_bits(const NewWeight& weight) {
  const auto type = parse_safetensors_type(weight.type);
  if (!type) {
    throw InvalidArgument(fmt::format("tensor '{}': penstock writes no type '{}' to a .safetensors file",
                                      weight.name, weight.type));
  }
  return type->bits;
}

void check_names(std::span<const NewWeight> weights) {
  std::unordered_set<std::string_view> names;
  for (const NewWeight& weight : weights) {
    if (weight.name == kSafetensorsMetadata) {
      throw InvalidArgument(
          fmt::format("no tensor can be named '{}': the format keeps that for texts. Pass "
                      "them as metadata.",
                      kSafetensorsMetadata));
    }
    if (!names.insert(weight.name).second) {
      throw InvalidArgument(fmt::format("two tensors are named '{}'", weight.name));
    }
  }
}

/// Throws InvalidArgument if the tensor takes more than `room` bytes.
std::size_t bytes_of(const NewWeight& weight, std::size_t element_bits, std::size_t room) {
  const std::size_t elements = element_count(weight.shape);
  if (elements > room / std::max(element_bits / 8, std::size_t{1})) {
    throw InvalidArgument(fmt::format("tensor '{}' is too large for a file", weight.name));
  }
  if (elements % 8 * element_bits % 8 != 0) {
    throw InvalidArgument(fmt::format("tensor '{}' does not fill whole bytes", weight.name));
  }
  return elements / 8 * element_bits + elements % 8 * element_bits / 8;
}

/// As JSON writes it.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error& error) {
    throw InvalidArgument(fmt::format("a name or a text of the metadata is not UTF-8 ({})", error.what()));
  }
}

}  // namespace

std::string weight_type(DType dtype) { return std::string(safetensors_type(dtype)); }

WeightFileLayout lay_out_weights(std::span<const NewWeight> weights,
                                 const std::map<std::string, std::string>& metadata) {
  check_names(weights);
  std::vector<std::size_t> sizes;
  for (const NewWeight& weight : weights) sizes.push_back(element_bits(weight));
  WeightFileLayout layout;
  layout.offsets.resize(weights.size());
  // Text, and no tree of nlohmann-json: the destructor of a tree needs memory, and ends the process without.
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [name, text] : metadata) texts.push_back(quoted(name) + ":" + quoted(text));
    entries.push_back(fmt::format("\"{}\":{{{}}}", kSafetensorsMetadata, fmt::join(texts, ",")));
  }
  std::size_t end = 0;
  const auto append = [&](std::size_t i) {
    const auto& [name, type, shape] = weights[i];
    layout.offsets[i] = end;
    end += bytes_of(weights[i], sizes[i], std::numeric_limits<std::size_t>::max() / 2 - end);
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(name),
                                  type, fmt::join(shape, ","), layout.offsets[i], end));
  };
  for (const std::size_t size : {64, 32, 16, 8, 6, 4}) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (sizes[i] == size) append(i);
    }
  }

  std::string text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize(align_up(kLengthSize + text.size(), kDataAlignment) - kLengthSize, ' ');
  if (text.size() > kLongestSafetensorsHeader) {
    throw InvalidArgument(
        fmt::format("the header of the .safetensors file would take {} bytes, and readers "
                    "take at most {}: save to several files",
                    text.size(), kLongestSafetensorsHeader));
  }
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    layout.head.push_back(static_cast<char>(text.size() >> (8 * i)));
  }
  layout.head += text;
  for (std::size_t& offset : layout.offsets) offset += layout.head.size();
  layout.bytes = layout.head.size() + end;
  return layout;
}

}  // namespace penstock
