#include "data/npz.hpp"

#include "data/array_bytes.hpp"
#include "data/deflate.hpp"
#include "data/file_reader.hpp"
#include "data/malformed.hpp"

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace penstock {

namespace {

constexpr std::string_view kSuffix = ".npy";

std::string name_within(const std::string& file, const ZipMember& member) {
  return fmt::format("{} ({})", file, member.name);
}

std::uint32_t extend_checksum(std::uint32_t checksum, std::span<const std::byte> data) {
  return static_cast<std::uint32_t>(
      crc32_z(checksum, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

/// A member's unpacked content, from its beginning on.
class MemberStream {
 public:
  MemberStream(ReadAt read, const ZipMember& member, const std::string& file)
      : read_(read), position_(member.offset), end_(member.offset + member.packed_bytes) {
    if (member.deflated) unpacked_.emplace(next_, file);
  }
  MemberStream(const MemberStream&) = delete;
  MemberStream& operator=(const MemberStream&) = delete;

  /// Fills `destination`. Returns the bytes written: fewer only at the member's end.
  std::size_t read(std::span<std::byte> destination) {
    return unpacked_ ? unpacked_->read(destination) : next_(destination);
  }

 private:
  struct Next {
    MemberStream& stream;
    std::size_t operator()(std::span<std::byte> destination) const {
      const std::uint64_t left = stream.end_ - stream.position_;
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(destination.size(), left));
      const std::size_t got = stream.read_(stream.position_, destination.first(count));
      stream.position_ += got;
      return got;
    }
  };

  ReadAt read_;
  std::uint64_t position_;
  std::uint64_t end_;
  Next next_{*this};
  std::optional<DeflateStream> unpacked_;
};

std::vector<std::byte> head_of(const ZipMember& member) {
  return std::vector<std::byte>(
      static_cast<std::size_t>(std::min<std::uint64_t>(member.bytes, kNpyHeadBytes)));
}

Field sample_field(const ZipMember& member, const NpyHeader& header) {
  return {member.name.substr(0, member.name.size() - kSuffix.size()), header.dtype,
          Shape(header.shape.begin() + 1, header.shape.end())};
}

FieldReaderPtr read_member(const File& file, const ZipMember& member, const FileOptions& options) {
  if (!member.name.ends_with(kSuffix) || member.name.size() == kSuffix.size()) {
    throw_malformed(file.name(), member.offset, "members that are .npy files",
                    fmt::format("'{}'", member.name));
  }
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    return file.read(offset, destination);
  };
  if (member.deflated || file.size() <= options.load_limit) {
    NpyArray array = read_npy_member(read, member, file.name());
    return read_pages(sample_field(member, array.header), std::move(array.pages));
  }
  std::vector<std::byte> head = head_of(member);
  read_exactly(file, member.offset, head);
  const NpyHeader header = parse_npy_header(head, member.bytes, name_within(file.name(), member));
  return read_file(file, sample_field(member, header), member.offset + header.data_offset,
                   header.shape.front(), options);
}

}  // namespace

bool is_npz(std::span<const std::byte> head) noexcept {
  constexpr std::uint64_t kLocalHeader = 0x04034b50;
  constexpr std::size_t kFixedBytes = 30;
  if (head.size() < kFixedBytes || little_endian(head.first(4)) != kLocalHeader) return false;
  const auto name_bytes = static_cast<std::size_t>(little_endian(head.subspan(26, 2)));
  if (name_bytes > head.size() - kFixedBytes) return false;
  const auto name = head.subspan(kFixedBytes, name_bytes);
  return std::string_view(reinterpret_cast<const char*>(name.data()), name.size()).ends_with(kSuffix);
}

NpyArray read_npy_member(ReadAt read, const ZipMember& member, const std::string& file) {
  const std::string within = name_within(file, member);
  MemberStream stream(read, member, within);
  std::vector<std::byte> head = head_of(member);
  head.resize(stream.read(head));
  NpyHeader header = parse_npy_header(head, member.bytes, within);
  HostPages pages(static_cast<std::size_t>(member.bytes - header.data_offset));
  const auto begun = std::span<const std::byte>(head).subspan(static_cast<std::size_t>(header.data_offset));
  std::copy(begun.begin(), begun.end(), pages.bytes().begin());
  const std::uint64_t present = head.size() + stream.read(pages.bytes().subspan(begun.size()));
  std::byte beyond;
  if (present != member.bytes || stream.read(std::span(&beyond, 1)) != 0) {
    throw_malformed(within, present, fmt::format("the end of the member after {} bytes", member.bytes),
                    present != member.bytes ? fmt::format("it after {}", present) : "more");
  }
  const std::uint32_t checksum = extend_checksum(
      extend_checksum(0,
                      std::span<const std::byte>(head).first(static_cast<std::size_t>(header.data_offset))),
      pages.bytes());
  if (checksum != member.checksum) {
    throw_malformed(within, 0, fmt::format("data with the checksum {:08x}", member.checksum),
                    fmt::format("{:08x}: the file is damaged", checksum));
  }
  return {std::move(header), std::move(pages)};
}

std::vector<FieldReaderPtr> read_npz(const std::filesystem::path& path, const FileOptions& options) {
  const File file(path);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    return file.read(offset, destination);
  };
  std::vector<FieldReaderPtr> readers;
  for (const ZipMember& member : read_zip_directory(read, file.size(), file.name())) {
    readers.push_back(read_member(file, member, options));
  }
  if (readers.empty()) throw_malformed(file.name(), 0, "at least one array", "none");
  require_same_length(readers, file.name());
  return readers;
}

}  // namespace penstock
