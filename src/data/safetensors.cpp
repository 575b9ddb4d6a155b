#include "data/safetensors.hpp"

#include "data/array_bytes.hpp"
#include "data/file_reader.hpp"
#include "data/malformed.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

// A file holds the length of its header in eight bytes, the header in JSON, and the tensors' data side by
// side. The header has an entry for each tensor: its type, its shape, and where in the data it begins and
// ends.

namespace penstock {

namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr int kDeepest = 4;  // the header, an entry, a list, its numbers

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"BOOL", DType::boolean}, {"U8", DType::uint8},    {"I8", DType::int8},       {"U16", DType::uint16},
    {"I16", DType::int16},    {"U32", DType::uint32},  {"I32", DType::int32},     {"U64", DType::uint64},
    {"I64", DType::int64},    {"F16", DType::float16}, {"BF16", DType::bfloat16}, {"F32", DType::float32},
    {"F64", DType::float64}};

/// The header's text as JSON, with no name twice.
json parse_text(std::span<const std::byte> text, const std::string& file) {
  std::vector<std::set<std::string>> open;  // the names of each object that is not closed yet
  const auto note = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest) {
      throw_malformed(file, kLengthBytes, "an entry with lists of numbers for each tensor", "more levels");
    }
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      throw_malformed(file, kLengthBytes, "a header that has each name once",
                      fmt::format("'{}' twice", value.get<std::string>()));
    }
    return true;
  };
  const auto* begin = reinterpret_cast<const char*>(text.data());
  try {
    return json::parse(begin, begin + text.size(), note);
  } catch (const json::parse_error& error) {
    throw_malformed(file, kLengthBytes + std::max<std::size_t>(error.byte, 1) - 1, "a header in JSON",
                    error.byte > text.size() ? "its end" : "other text");
  } catch (const json::out_of_range&) {
    throw_malformed(file, kLengthBytes, "a header in JSON", "a number that is too large for any type");
  }
}

/// The list of whole numbers under `key`.
std::vector<std::uint64_t> numbers_of(const json& entry, const char* key, const std::string& within) {
  const auto found = entry.find(key);
  const bool right = found != entry.end() && found->is_array() &&
                     std::all_of(found->begin(), found->end(),
                                 [](const json& number) { return number.is_number_unsigned(); });
  if (!right) {
    throw_malformed(within, kLengthBytes, fmt::format("a list of whole numbers under '{}'", key),
                    found == entry.end() ? "none" : "something else");
  }
  return found->get<std::vector<std::uint64_t>>();
}

[[noreturn]] void refuse_type(std::string_view name, const std::string& within) {
  throw_malformed(within, kLengthBytes, "a dtype such as \"F32\" under 'dtype'",
                  fmt::format("\"{}\", which penstock does not move", name));
}

/// Sets `tensor`'s type. False if penstock does not move it.
bool read_type(const json& entry, const std::string& within, SafeTensor& tensor) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) {
    throw_malformed(within, kLengthBytes, "a dtype such as \"F32\" under 'dtype'", "none");
  }
  tensor.type = found->get<std::string>();
  const std::optional<SafetensorsType> type = parse_safetensors_type(tensor.type);
  tensor.is_opaque = !type || type->is_opaque;
  if (type) tensor.dtype = type->dtype;
  return type.has_value();
}

SafeTensor read_entry(const std::string& name, const json& entry, std::uint64_t data,
                      std::uint64_t file_bytes, const std::string& file) {
  const std::string within = fmt::format("{} ({})", file, name);
  if (!entry.is_object() || entry.size() != 3) {
    throw_malformed(within, kLengthBytes, "'dtype', 'shape' and 'data_offsets'", "something else");
  }
  SafeTensor tensor;
  tensor.name = name;
  const bool is_known = read_type(entry, within, tensor);
  const auto extents = numbers_of(entry, "shape", within);
  tensor.shape.assign(extents.begin(), extents.end());
  const auto offsets = numbers_of(entry, "data_offsets", within);
  const bool in_order = offsets.size() == 2 && offsets[0] <= offsets[1];
  if (is_known) {
    tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape, kLengthBytes, within);
  } else if (in_order) {
    tensor.bytes = offsets[1] - offsets[0];
  }
  if (!in_order || offsets[1] - offsets[0] != tensor.bytes) {
    throw_malformed(within, kLengthBytes,
                    fmt::format("'data_offsets' that are {} bytes apart ({} of {})", tensor.bytes,
                                format_shape(tensor.shape), tensor.type),
                    "other numbers");
  }
  if (offsets[1] > file_bytes - data) {
    throw_malformed(within, file_bytes, fmt::format("{} bytes of data", offsets[1]), "the end of the file");
  }
  tensor.offset = data + offsets[0];
  return tensor;
}

void check_places(const std::vector<SafeTensor>& tensors, std::uint64_t data, std::uint64_t file_bytes,
                  const std::string& file) {
  std::vector<const SafeTensor*> placed;
  for (const SafeTensor& tensor : tensors) placed.push_back(&tensor);
  // One without elements lies before the one that begins at the same place.
  std::ranges::sort(placed, {}, [](const SafeTensor* each) { return std::pair(each->offset, each->bytes); });
  std::uint64_t end = data;
  for (const SafeTensor* each : placed) {
    if (each->offset != end) {
      throw_malformed(
          file, std::min(end, each->offset), "tensors side by side",
          fmt::format("{} '{}'", each->offset < end ? "an overlap with" : "a gap before", each->name));
    }
    end = each->offset + each->bytes;
  }
  if (end != file_bytes) {
    throw_malformed(file, end, "the end of the file after the last tensor",
                    fmt::format("{} bytes more", file_bytes - end));
  }
}

}  // namespace

std::optional<SafetensorsType> parse_safetensors_type(std::string_view name) {
  for (const auto& [text, dtype] : kTypes) {
    if (text == name) return SafetensorsType{dtype};
  }
  for (const std::string_view text : {"F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    if (text == name) return SafetensorsType{DType::uint8, true};
  }
  return std::nullopt;
}

void require_known_type(std::string_view type, const std::string& tensor, const std::string& file) {
  if (!parse_safetensors_type(type)) refuse_type(type, fmt::format("{} ({})", file, tensor));
}

std::string_view safetensors_type(DType dtype) {
  return std::ranges::find(kTypes, dtype, &std::pair<std::string_view, DType>::second)->first;
}

bool is_safetensors(std::span<const std::byte> head, std::uint64_t file_bytes) noexcept {
  if (head.size() <= kLengthBytes || head[kLengthBytes] != std::byte{'{'}) return false;
  const std::uint64_t length = little_endian(head.first(kLengthBytes));
  return length <= kLongestSafetensorsHeader && length <= file_bytes - kLengthBytes;
}

std::vector<SafeTensor> read_safetensors_header(ReadAt read, std::uint64_t file_bytes,
                                                const std::string& file) {
  std::vector<std::byte> text(kLengthBytes);
  text.resize(read(0, text));
  if (text.size() < kLengthBytes) {
    throw_malformed(file, text.size(), "the header's length in eight bytes", "the end of the file");
  }
  const std::uint64_t length = little_endian(text);
  const std::uint64_t most =
      std::min(kLongestSafetensorsHeader, file_bytes - std::min(file_bytes, kLengthBytes));
  if (length > most) {
    throw_malformed(file, 0, fmt::format("a header of at most {} bytes", most),
                    fmt::format("a length of {}", length));
  }
  text.resize(static_cast<std::size_t>(length));
  text.resize(read(kLengthBytes, text));
  const json header = parse_text(text, file);
  if (!header.is_object()) throw_malformed(file, kLengthBytes, "a JSON object", "something else");
  const std::uint64_t data = kLengthBytes + length;
  std::vector<SafeTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != kSafetensorsMetadata) tensors.push_back(read_entry(name, entry, data, file_bytes, file));
  }
  check_places(tensors, data, file_bytes, file);
  return tensors;
}

std::vector<FieldReaderPtr> read_safetensors(const std::filesystem::path& path, const FileOptions& options) {
  const File file(path);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    return file.read(offset, destination);
  };
  std::vector<FieldReaderPtr> readers;
  for (SafeTensor& tensor : read_safetensors_header(read, file.size(), file.name())) {
    const std::string within = fmt::format("{} ({})", file.name(), tensor.name);
    if (tensor.is_opaque) refuse_type(tensor.type, within);
    static_cast<void>(array_bytes(tensor.dtype, tensor.shape, kLengthBytes, within));
    const std::uint64_t samples = tensor.shape.front();
    Field field{std::move(tensor.name), tensor.dtype, Shape(tensor.shape.begin() + 1, tensor.shape.end())};
    readers.push_back(read_file(file, std::move(field), tensor.offset, samples, options));
  }
  if (readers.empty()) throw_malformed(file.name(), kLengthBytes, "at least one tensor", "none");
  require_same_length(readers, file.name());
  return readers;
}

}  // namespace penstock
