#include "data/idx.hpp"

#include "data/file_reader.hpp"
#include "data/malformed.hpp"

#include <penstock/data/readers.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace penstock {

namespace {

DType idx_dtype(std::byte code, const std::string& file) {
  switch (std::to_integer<unsigned>(code)) {
    case 0x08:
      return DType::uint8;
    case 0x09:
      return DType::int8;
    case 0x0B:
      return DType::int16;
    case 0x0C:
      return DType::int32;
    case 0x0D:
      return DType::float32;
    case 0x0E:
      return DType::float64;
    default:
      throw_malformed(file, 2, "an IDX type (0x08, 0x09, 0x0b to 0x0e)",
                      fmt::format("{:#04x}", std::to_integer<unsigned>(code)));
  }
}

std::size_t big_endian(std::span<const std::byte> bytes) {
  std::size_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::size_t>(byte);
  return value;
}

Field sample_field(const IdxHeader& header, std::string name) {
  return {std::move(name), header.dtype, Shape(header.shape.begin() + 1, header.shape.end())};
}

[[noreturn]] void throw_wrong_length(const IdxHeader& header, std::uint64_t present, bool or_more,
                                     const std::string& file) {
  throw_malformed(file, header.data_offset + std::min(present, header.data_bytes),
                  fmt::format("the end of the data after {} bytes ({} of {})", header.data_bytes,
                              format_shape(header.shape), dtype_name(header.dtype)),
                  or_more ? "more" : fmt::format("{} bytes", present));
}

FieldReaderPtr read_packed(const File& file, const std::string& name) {
  std::uint64_t position = 0;
  auto next = [&](std::span<std::byte> destination) {
    const std::size_t got = file.read(position, destination);
    position += got;
    return got;
  };
  IdxData data = unpack_idx(next, file.size(), file.name());
  return read_pages(sample_field(data.header, name), std::move(data.pages));
}

FieldReaderPtr read_plain(File file, const std::string& name, const FileOptions& options) {
  std::array<std::byte, kIdxHeadBytes> head;
  const std::size_t got = file.read(0, head);
  const IdxHeader header = parse_idx_header(std::span(head).first(got), file.name());
  const std::uint64_t present = file.size() - std::min(file.size(), header.data_offset);
  if (present != header.data_bytes) throw_wrong_length(header, present, false, file.name());
  const std::size_t value_bytes = dtype_bytes(header.dtype);
  if (value_bytes == 1) {
    return read_file(std::move(file), sample_field(header, name), header.data_offset, header.shape.front(),
                     options);
  }
  HostPages pages(static_cast<std::size_t>(header.data_bytes));
  read_exactly(file, header.data_offset, pages.bytes());
  swap_to_native(pages.bytes(), value_bytes);
  return read_pages(sample_field(header, name), std::move(pages));
}

}  // namespace

IdxHeader parse_idx_header(std::span<const std::byte> head, const std::string& file) {
  if (head.size() < 4)
    throw_malformed(file, head.size(), "the four bytes of an IDX magic", "the end of the file");
  if (head[0] != std::byte{0} || head[1] != std::byte{0}) {
    throw_malformed(file, 0, "the two zero bytes of an IDX file", "other bytes");
  }
  IdxHeader header;
  header.dtype = idx_dtype(head[2], file);
  const auto axes = std::to_integer<std::size_t>(head[3]);
  if (axes == 0) throw_malformed(file, 3, "a first axis that counts samples", "no axes");
  header.data_offset = 4 + 4 * axes;
  if (head.size() < header.data_offset) {
    throw_malformed(file, head.size(), fmt::format("the extents of {} axes", axes), "the end of the file");
  }
  header.data_bytes = dtype_bytes(header.dtype);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::size_t offset = 4 + 4 * axis;
    const std::size_t extent = big_endian(head.subspan(offset, 4));
    header.shape.push_back(extent);
    if (extent == 0) {
      throw_malformed(file, offset, axis == 0 ? "at least one sample" : "samples of at least one byte",
                      "an axis of extent 0");
    }
    if (__builtin_mul_overflow(header.data_bytes, std::uint64_t{extent}, &header.data_bytes) ||
        header.data_bytes > (std::uint64_t{1} << 62)) {
      throw_malformed(file, offset, "an array that fits the address space",
                      "the shape " + format_shape(header.shape));
    }
  }
  return header;
}

void swap_to_native(std::span<std::byte> data, std::size_t value_bytes) noexcept {
  if constexpr (std::endian::native == std::endian::big) return;
  for (std::size_t i = 0; i + value_bytes <= data.size(); i += value_bytes) {
    std::reverse(data.begin() + static_cast<std::ptrdiff_t>(i),
                 data.begin() + static_cast<std::ptrdiff_t>(i + value_bytes));
  }
}

IdxData unpack_idx(ByteSource source, std::uint64_t packed_bytes, const std::string& file) {
  GzipStream stream(source, file);
  std::array<std::byte, kIdxHeadBytes> head;
  const std::string inside = file + " (unpacked)";
  std::size_t got = stream.read(std::span(head).first(4));
  if (got == 4) got += stream.read(std::span(head).subspan(4, 4 * std::to_integer<std::size_t>(head[3])));
  const IdxHeader header = parse_idx_header(std::span(head).first(got), inside);
  if ((header.data_offset + header.data_bytes) / kDeflateMaximumRatio > packed_bytes) {
    throw_malformed(inside, 4, fmt::format("no more than {} bytes of gzip data can hold", packed_bytes),
                    fmt::format("the shape {} of {}, {} bytes", format_shape(header.shape),
                                dtype_name(header.dtype), header.data_bytes));
  }
  HostPages pages(static_cast<std::size_t>(header.data_bytes));
  const std::size_t present = stream.read(pages.bytes());
  if (present != header.data_bytes) throw_wrong_length(header, present, false, inside);
  std::byte beyond;
  if (stream.read(std::span(&beyond, 1)) != 0) throw_wrong_length(header, present, true, inside);
  const std::size_t value_bytes = dtype_bytes(header.dtype);
  if (value_bytes > 1) swap_to_native(pages.bytes(), value_bytes);
  return {header, std::move(pages)};
}

std::string idx_field_name(const std::string& file_name) {
  for (const char* name : {"images", "labels"}) {
    if (file_name.find(name) != std::string::npos) return name;
  }
  return file_name.substr(0, std::min(file_name.find("-idx"), file_name.find('.')));
}

FieldReaderPtr read_idx(const std::filesystem::path& path, const FileOptions& options) {
  File file(path);
  const std::string name = idx_field_name(path.filename().string());
  std::array<std::byte, 2> magic{};
  const bool packed = file.read(0, magic) == 2 && magic[0] == std::byte{0x1F} && magic[1] == std::byte{0x8B};
  return packed ? read_packed(file, name) : read_plain(std::move(file), name, options);
}

}  // namespace penstock
