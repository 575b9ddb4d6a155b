#include "data/safetensors.hpp"

#include "data/array_bytes.hpp"
#include "data/file_format.hpp"
#include "data/file_reader.hpp"
#include "data/malformed.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <unordered_set>
#include <utility>

// A file holds the length of its header in eight bytes, the header in JSON, and the tensors' data side by
// side. The header has an entry for each tensor: its type, its shape, and where in the data it begins and
// ends.

namespace penstock {

namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;

struct NamedType {
  std::string_view name;
  SafetensorsType type;
};

constexpr NamedType kTypes[] = {
    {"BOOL", {DType::boolean, 8}},  {"U8", {DType::uint8, 8}},          {"I8", {DType::int8, 8}},
    {"U16", {DType::uint16, 16}},   {"I16", {DType::int16, 16}},        {"U32", {DType::uint32, 32}},
    {"I32", {DType::int32, 32}},    {"U64", {DType::uint64, 64}},       {"I64", {DType::int64, 64}},
    {"F16", {DType::float16, 16}},  {"BF16", {DType::bfloat16, 16}},    {"F32", {DType::float32, 32}},
    {"F64", {DType::float64, 64}},  {"F4", {std::nullopt, 4}},          {"F6_E2M3", {std::nullopt, 6}},
    {"F6_E3M2", {std::nullopt, 6}}, {"F8_E4M3", {std::nullopt, 8}},     {"F8_E5M2", {std::nullopt, 8}},
    {"F8_E8M0", {std::nullopt, 8}}, {"F8_E4M3FNUZ", {std::nullopt, 8}}, {"F8_E5M2FNUZ", {std::nullopt, 8}},
    {"C64", {std::nullopt, 64}},
};

/// What the header says of a tensor. A part is missing if the header lacks it.
struct Entry {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

[[noreturn]] void refuse_twice(const std::string& name, const std::string& file) {
  throw_malformed(file, kLengthBytes, "a header that has each name once", fmt::format("'{}' twice", name));
}

/// Takes the header's values as the parser meets them, so that a header of any length takes its length in
/// time. Other keys in an entry are ignored, whatever they hold, as the format's own library does.
class HeaderText final : public json::json_sax_t {
 public:
  explicit HeaderText(const std::string& file) : file_(file) {}

  std::vector<Entry> entries;
  SafetensorsMetadata metadata;

  bool null() override { return depth_ == 1 && place_ == Place::metadata ? true : other(); }
  bool boolean(bool /*value*/) override { return other(); }
  bool number_integer(std::int64_t /*value*/) override { return other(); }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return other(); }
  bool binary(json::binary_t& /*value*/) override { return other(); }
  bool number_unsigned(std::uint64_t value) override {
    if (depth_ != 3 || !is_list()) return other();
    list()->push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ != 2 || (place_ != Place::type && place_ != Place::text)) return other();
    if (place_ == Place::type) {
      entries.back().type = value;
    } else if (!metadata.emplace(text_, value).second) {
      refuse_twice(text_, file_);
    }
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      begin_entry(name);
    } else if (depth_ == 2) {
      begin_part(name);
    }
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ > 1) other();
    ++depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 2 && is_list()) {
      list().emplace();
    } else {
      other();
    }
    ++depth_;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t place, const std::string& /*token*/, const json::exception& error) override {
    const bool is_number = dynamic_cast<const json::out_of_range*>(&error) != nullptr;
    throw_malformed(file_, kLengthBytes + std::max<std::size_t>(place, 1) - 1, "a header in JSON",
                    is_number ? "a number that is too large for any type" : "other text or the text's end");
  }

 private:
  enum class Place : std::uint8_t { header, entry, type, shape, offsets, ignored, metadata, text };

  [[nodiscard]] bool is_list() const { return place_ == Place::shape || place_ == Place::offsets; }
  std::optional<std::vector<std::uint64_t>>& list() {
    return place_ == Place::shape ? entries.back().shape : entries.back().offsets;
  }
  void begin_entry(const std::string& name) {
    place_ = name == kSafetensorsMetadata ? Place::metadata : Place::entry;
    if (place_ == Place::entry) {
      entries.push_back({name, {}, {}, {}});
    } else if (std::exchange(has_metadata_, true)) {
      refuse_twice(name, file_);
    }
  }
  void begin_part(const std::string& name) {
    if (place_ == Place::metadata || place_ == Place::text) {
      place_ = Place::text;
      text_ = name;
      return;
    }
    const Entry& entry = entries.back();
    place_ = name == "dtype"          ? Place::type
             : name == "shape"        ? Place::shape
             : name == "data_offsets" ? Place::offsets
                                      : Place::ignored;
    if ((place_ == Place::type && entry.type) || (is_list() && list())) refuse_twice(name, file_);
  }
  bool close() {
    if (--depth_ == 1) place_ = Place::entry;
    return true;
  }
  /// A value that no other function takes: it is ignored or refused.
  bool other() const {
    if (depth_ >= 2 && place_ == Place::ignored) return true;
    const bool in_entry = depth_ > 0 && place_ != Place::metadata && place_ != Place::text;
    throw_malformed(in_entry ? fmt::format("{} ({})", file_, entries.back().name) : file_, kLengthBytes,
                    expected(), "something else");
  }
  [[nodiscard]] std::string_view expected() const {
    switch (place_) {
      case Place::type:
        return "a dtype such as \"F32\" under 'dtype'";
      case Place::shape:
        return "a list of whole numbers under 'shape'";
      case Place::offsets:
        return "a list of whole numbers under 'data_offsets'";
      case Place::metadata:
      case Place::text:
        return "texts by name under '__metadata__'";
      default:
        return depth_ == 0 ? "a JSON object" : "'dtype', 'shape' and 'data_offsets'";
    }
  }

  const std::string& file_;
  std::size_t depth_ = 0;  ///< of open objects and lists
  Place place_ = Place::header;
  bool has_metadata_ = false;
  std::string text_;  ///< its name in the metadata
};

HeaderText parse_text(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // The parser would take a zero for the text's end, and skip a byte order mark.
  const std::size_t zero = text.find('\0');
  if (zero != std::string_view::npos) {
    throw_malformed(file, kLengthBytes + zero, "a header in JSON", "a byte of value 0");
  }
  if (text.starts_with('\xEF')) throw_malformed(file, kLengthBytes, "a JSON object", "a byte order mark");
  HeaderText header(file);
  json::sax_parse(text, &header);
  return header;
}

[[noreturn]] void refuse_type(std::string_view name, const std::string& within) {
  throw_malformed(within, kLengthBytes, "a dtype such as \"F32\" under 'dtype'",
                  fmt::format("\"{}\", which penstock does not move", name));
}

SafeTensor read_entry(Entry entry, std::uint64_t data, std::uint64_t file_bytes, const std::string& file) {
  const std::string within = fmt::format("{} ({})", file, entry.name);
  if (!entry.type || !entry.shape || !entry.offsets) {
    throw_malformed(within, kLengthBytes, "'dtype', 'shape' and 'data_offsets'",
                    fmt::format("no '{}'", !entry.type    ? "dtype"
                                           : !entry.shape ? "shape"
                                                          : "data_offsets"));
  }
  const auto& offsets = *entry.offsets;
  const bool in_order = offsets.size() == 2 && offsets[0] <= offsets[1];
  const std::optional<SafetensorsType> type = parse_safetensors_type(*entry.type);
  SafeTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.type = std::move(*entry.type);
  tensor.dtype = type ? type->dtype : std::nullopt;
  tensor.shape.assign(entry.shape->begin(), entry.shape->end());
  if (type) {
    tensor.bytes = tensor_bytes(type->bits, tensor.shape, kLengthBytes, within);
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

void check_names(const std::vector<SafeTensor>& tensors, const std::string& file) {
  std::unordered_set<std::string_view> names;
  for (const SafeTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) refuse_twice(tensor.name, file);
  }
}

void check_places(const std::vector<SafeTensor>& tensors, std::uint64_t data, std::uint64_t file_bytes,
                  const std::string& file) {
  std::uint64_t end = data;
  for (const SafeTensor& each : tensors) {
    if (each.offset != end) {
      throw_malformed(
          file, std::min(end, each.offset), "tensors side by side",
          fmt::format("{} '{}'", each.offset < end ? "an overlap with" : "a gap before", each.name));
    }
    end = each.offset + each.bytes;
  }
  if (end != file_bytes) {
    throw_malformed(file, end, "the end of the file after the last tensor",
                    fmt::format("{} bytes more", file_bytes - end));
  }
}

}  // namespace

std::optional<SafetensorsType> parse_safetensors_type(std::string_view name) {
  const auto* const found = std::ranges::find(kTypes, name, &NamedType::name);
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->type);
}

void require_known_type(std::string_view type, const std::string& tensor, const std::string& file) {
  if (!parse_safetensors_type(type)) refuse_type(type, fmt::format("{} ({})", file, tensor));
}

std::string_view safetensors_type(DType dtype) {
  const auto* const found =
      std::ranges::find(kTypes, dtype, [](const NamedType& each) { return each.type.dtype; });
  return found->name;
}

bool is_safetensors(std::span<const std::byte> head, std::uint64_t file_bytes) noexcept {
  if (head.size() <= kLengthBytes || head[kLengthBytes] != std::byte{'{'}) return false;
  const std::uint64_t length = little_endian(head.first(kLengthBytes));
  return length <= kLongestSafetensorsHeader && length <= file_bytes - kLengthBytes;
}

SafetensorsHeader read_safetensors_header(ReadAt read, std::uint64_t file_bytes, const std::string& file) {
  std::vector<std::byte> text(kLengthBytes);
  text.resize(read(0, text));
  if (text.size() < kLengthBytes) {
    throw_malformed(file, text.size(), "the header's length in eight bytes",
                    "the end of the file. Download or copy it again");
  }
  const std::uint64_t length = little_endian(text);
  const std::uint64_t most =
      std::min(kLongestSafetensorsHeader, file_bytes - std::min(file_bytes, kLengthBytes));
  if (length > most) {
    std::vector<std::byte> head(64);
    head.resize(read(0, head));
    const std::string_view kind = other_kind({reinterpret_cast<const char*>(head.data()), head.size()});
    if (!kind.empty()) throw_malformed(file, 0, "a .safetensors file", kind);
    throw_malformed(file, 0, fmt::format("a header of at most {} bytes", most),
                    fmt::format("a length of {}", length));
  }
  text.resize(static_cast<std::size_t>(length));
  text.resize(read(kLengthBytes, text));
  HeaderText header = parse_text(text, file);
  const std::uint64_t data = kLengthBytes + length;
  std::vector<SafeTensor> tensors;
  for (Entry& entry : header.entries) {
    tensors.push_back(read_entry(std::move(entry), data, file_bytes, file));
  }
  check_names(tensors, file);
  // Those without elements lie before the one that begins at the same place.
  std::ranges::sort(tensors, {}, [](const SafeTensor& each) {
    return std::tuple(each.offset, each.bytes, std::string_view(each.name));
  });
  check_places(tensors, data, file_bytes, file);
  return {std::move(tensors), std::move(header.metadata)};
}

std::vector<FieldReaderPtr> read_safetensors(const std::filesystem::path& path, const FileOptions& options) {
  const File file(path);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    return file.read(offset, destination);
  };
  std::vector<FieldReaderPtr> readers;
  SafetensorsHeader header = read_safetensors_header(read, file.size(), file.name());
  std::ranges::sort(header.tensors, {}, &SafeTensor::name);
  for (SafeTensor& tensor : header.tensors) {
    const std::string within = fmt::format("{} ({})", file.name(), tensor.name);
    if (!tensor.dtype) refuse_type(tensor.type, within);
    static_cast<void>(array_bytes(*tensor.dtype, tensor.shape, kLengthBytes, within));
    const std::uint64_t samples = tensor.shape.front();
    Field field{std::move(tensor.name), *tensor.dtype, Shape(tensor.shape.begin() + 1, tensor.shape.end())};
    readers.push_back(read_file(file, std::move(field), tensor.offset, samples, options));
  }
  if (readers.empty()) throw_malformed(file.name(), kLengthBytes, "at least one tensor", "none");
  require_same_length(readers, file.name());
  return readers;
}

}  // namespace penstock
