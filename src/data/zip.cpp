#include "data/zip.hpp"

#include "data/array_bytes.hpp"
#include "data/deflate.hpp"
#include "data/malformed.hpp"

#include <algorithm>
#include <set>
#include <string_view>

// An archive ends with an end record, which says where the directory lies. The directory describes each
// member and says where its local header is; the data follow that header. If a number does not fit, it is all
// ones, and the true number is in a zip64 record: a second end record before the first, or an extra field of
// the member.

namespace penstock {

namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kLocator64 = 0x07064b50;

constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::size_t kDirectoryEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kEnd64Bytes = 56;
constexpr std::size_t kLocator64Bytes = 20;
constexpr std::size_t kLongestComment = 0xFFFF;
constexpr std::uint64_t kLargestDirectory = std::uint64_t{64} << 20;

/// Some bytes of the archive, and their offset in it.
class Record {
 public:
  Record(std::span<const std::byte> bytes, std::uint64_t offset) : bytes_(bytes), offset_(offset) {}

  [[nodiscard]] std::uint64_t number(std::size_t at, std::size_t count) const {
    return little_endian(bytes_.subspan(at, count));
  }
  [[nodiscard]] bool begins_with(std::uint32_t signature) const {
    return bytes_.size() >= 4 && number(0, 4) == signature;
  }
  [[nodiscard]] std::string text(std::size_t at, std::size_t count) const {
    const auto part = bytes_.subspan(at, count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  [[nodiscard]] Record from(std::size_t at) const { return {bytes_.subspan(at), offset_ + at}; }
  [[nodiscard]] Record part(std::size_t at, std::size_t count) const {
    return {bytes_.subspan(at, count), offset_ + at};
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t offset_;
};

struct Archive {
  ReadAt read;
  std::uint64_t bytes;
  const std::string& file;

  [[noreturn]] void refuse(std::uint64_t offset, std::string_view expected, std::string_view found) const {
    throw_malformed(file, offset, expected, found);
  }

  /// Exactly `count` bytes, or fewer if the archive ends before.
  [[nodiscard]] std::vector<std::byte> at(std::uint64_t offset, std::uint64_t count) const {
    std::vector<std::byte> content(
        static_cast<std::size_t>(std::min(count, bytes - std::min(bytes, offset))));
    content.resize(read(offset, content));
    return content;
  }
};

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t end = 0;  ///< where the end records begin
};

Directory read_end64(const Archive& archive, const Record& locator) {
  const std::uint64_t offset = locator.number(8, 8);
  const auto content = archive.at(offset, kEnd64Bytes);
  const Record end(content, offset);
  std::uint64_t record_end = 0;
  if (content.size() < kEnd64Bytes || !end.begins_with(kEnd64) ||
      __builtin_add_overflow(offset + 12, end.number(4, 8), &record_end) || record_end != locator.offset()) {
    archive.refuse(offset, "the zip64 end record", "other bytes");
  }
  if (locator.number(16, 4) > 1 || end.number(16, 4) != 0 || end.number(20, 4) != 0) {
    archive.refuse(offset, "an archive in one file", "a part of a split one");
  }
  return {
      .offset = end.number(48, 8), .bytes = end.number(40, 8), .entries = end.number(32, 8), .end = offset};
}

Directory read_end(const Archive& archive, const Record& tail, std::size_t at) {
  const Record end = tail.from(at);
  if (at >= kLocator64Bytes) {
    const Record locator = tail.part(at - kLocator64Bytes, kLocator64Bytes);
    if (locator.begins_with(kLocator64)) return read_end64(archive, locator);
  }
  if (end.number(4, 2) != 0 || end.number(6, 2) != 0) {
    archive.refuse(end.offset(), "an archive in one file", "a part of a split one");
  }
  return {.offset = end.number(16, 4),
          .bytes = end.number(12, 4),
          .entries = end.number(10, 2),
          .end = end.offset()};
}

Directory find_directory(const Archive& archive) {
  constexpr std::uint64_t kTail = kLocator64Bytes + kEndBytes + kLongestComment;
  const std::uint64_t begin = archive.bytes - std::min(archive.bytes, kTail);
  const auto content = archive.at(begin, kTail);
  const Record tail(content, begin);
  for (std::size_t at = content.size() + 1 - std::min(content.size() + 1, kEndBytes); at-- > 0;) {
    const Record end = tail.from(at);
    if (!end.begins_with(kEnd) || end.number(20, 2) != end.size() - kEndBytes) continue;
    const Directory directory = read_end(archive, tail, at);
    std::uint64_t directory_end = 0;
    if (__builtin_add_overflow(directory.offset, directory.bytes, &directory_end) ||
        directory_end != directory.end) {
      archive.refuse(end.offset(), "a directory that ends where its end record begins",
                     fmt::format("{} bytes of directory from byte {} on", directory.bytes, directory.offset));
    }
    if (directory.bytes > kLargestDirectory || directory.entries > directory.bytes / kDirectoryEntryBytes) {
      archive.refuse(end.offset(), "a directory that holds its entries, and at most 64 MiB",
                     fmt::format("{} entries in {} bytes", directory.entries, directory.bytes));
    }
    return directory;
  }
  archive.refuse(archive.bytes, "the end record of a .zip archive before the end of the file",
                 "none: the file was cut short, or is not an archive");
}

std::string method_name(std::uint64_t method) {
  switch (method) {
    case 9:
      return "Deflate64";
    case 12:
      return "bzip2";
    case 14:
      return "LZMA";
    case 93:
      return "Zstandard";
    default:
      return fmt::format("method {}", method);
  }
}

/// Replaces numbers that are all ones by the true ones, which the extra field holds in this order.
void read_zip64_field(const Archive& archive, const Record& extra, ZipMember& member) {
  constexpr std::uint64_t kElsewhere = 0xFFFFFFFF;
  for (std::size_t at = 0; extra.size() - at >= 4;) {
    const std::uint64_t kind = extra.number(at, 2);
    const auto bytes = static_cast<std::size_t>(extra.number(at + 2, 2));
    at += 4;
    if (bytes > extra.size() - at) break;
    if (kind == 1) {
      std::size_t next = at;
      for (std::uint64_t* number : {&member.bytes, &member.packed_bytes, &member.offset}) {
        if (*number != kElsewhere) continue;
        if (at + bytes - next < 8) archive.refuse(extra.offset() + next, "a number of 64 bits", "none");
        *number = extra.number(next, 8);
        next += 8;
      }
      return;
    }
    at += bytes;
  }
}

/// The member that the entry describes. Its offset is still that of the local header.
ZipMember read_entry(const Archive& archive, const Record& entry, std::size_t& entry_bytes) {
  const std::uint64_t offset = entry.offset();
  if (entry.size() < kDirectoryEntryBytes || !entry.begins_with(kDirectoryEntry)) {
    archive.refuse(offset, "an entry of the directory", "other bytes");
  }
  const auto name_bytes = static_cast<std::size_t>(entry.number(28, 2));
  const auto extra_bytes = static_cast<std::size_t>(entry.number(30, 2));
  entry_bytes =
      kDirectoryEntryBytes + name_bytes + extra_bytes + static_cast<std::size_t>(entry.number(32, 2));
  if (entry_bytes > entry.size()) archive.refuse(offset, "an entry within the directory", "a longer one");
  ZipMember member{.name = entry.text(kDirectoryEntryBytes, name_bytes),
                   .offset = entry.number(42, 4),
                   .packed_bytes = entry.number(20, 4),
                   .bytes = entry.number(24, 4),
                   .checksum = static_cast<std::uint32_t>(entry.number(16, 4))};
  read_zip64_field(archive, entry.part(kDirectoryEntryBytes + name_bytes, extra_bytes), member);

  constexpr std::uint64_t kEncryptedOrPatched = 1 | 1 << 5 | 1 << 6 | 1 << 13;
  if ((entry.number(8, 2) & kEncryptedOrPatched) != 0) {
    archive.refuse(offset + 8, "plain members", fmt::format("'{}', which is encrypted", member.name));
  }
  const std::uint64_t method = entry.number(10, 2);
  if (method != 0 && method != 8) {
    archive.refuse(offset + 10, "stored or deflated members",
                   fmt::format("'{}', packed with {}", member.name, method_name(method)));
  }
  member.deflated = method == 8;
  if (member.deflated ? member.bytes / kDeflateMaximumRatio > member.packed_bytes
                      : member.bytes != member.packed_bytes) {
    archive.refuse(offset + 20,
                   fmt::format("as many bytes as {} {} ones can hold", member.packed_bytes,
                               member.deflated ? "deflated" : "stored"),
                   fmt::format("{} in '{}'", member.bytes, member.name));
  }
  return member;
}

/// Moves the member's offset from its local header to its data, and checks that the data end before `limit`.
void find_data(const Archive& archive, ZipMember& member, std::uint64_t limit) {
  const std::uint64_t begin = member.offset;
  const auto content = archive.at(begin, kLocalHeaderBytes + member.name.size());
  const Record header(content, begin);
  if (content.size() < kLocalHeaderBytes + member.name.size() || !header.begins_with(kLocalHeader) ||
      header.number(26, 2) != member.name.size() ||
      header.text(kLocalHeaderBytes, member.name.size()) != member.name ||
      header.number(8, 2) != (member.deflated ? 8U : 0U)) {
    archive.refuse(begin, fmt::format("the header of the member '{}'", member.name), "other bytes");
  }
  member.offset = begin + kLocalHeaderBytes + member.name.size() + header.number(28, 2);
  std::uint64_t end = 0;
  if (__builtin_add_overflow(member.offset, member.packed_bytes, &end) || end > limit) {
    archive.refuse(begin, fmt::format("a member '{}' that ends before byte {}", member.name, limit),
                   fmt::format("{} bytes from byte {} on", member.packed_bytes, member.offset));
  }
}

}  // namespace

std::vector<ZipMember> read_zip_directory(ReadAt read, std::uint64_t file_bytes, const std::string& file) {
  const Archive archive{read, file_bytes, file};
  const Directory directory = find_directory(archive);
  const auto content = archive.at(directory.offset, directory.bytes);
  Record rest(content, directory.offset);

  std::vector<ZipMember> members;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;  // from a local header to its data's end
  std::set<std::string, std::less<>> names;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    std::size_t entry_bytes = 0;
    ZipMember member = read_entry(archive, rest, entry_bytes);
    if (!names.insert(member.name).second) {
      archive.refuse(rest.offset(), "members with different names", fmt::format("'{}' twice", member.name));
    }
    const std::uint64_t begin = member.offset;
    find_data(archive, member, directory.offset);
    extents.emplace_back(begin, member.offset + member.packed_bytes);
    members.push_back(std::move(member));
    rest = rest.from(entry_bytes);
  }
  if (rest.size() != 0) archive.refuse(rest.offset(), "the end of the directory", "more bytes");
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].first < extents[i - 1].second) {
      archive.refuse(extents[i].first, "members that do not overlap", "two that do");
    }
  }
  return members;
}

}  // namespace penstock
