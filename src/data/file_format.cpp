#include "data/file_format.hpp"

#include "data/file.hpp"
#include "data/malformed.hpp"
#include "data/npz.hpp"
#include "data/safetensors.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = 512;

struct Head {
  explicit Head(const fs::path& path) {
    const File file(path);
    file_bytes = file.size();
    bytes.resize(kHeadBytes);
    bytes.resize(file.read(0, bytes));
  }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] bool begins_with(std::string_view magic) const { return text().starts_with(magic); }

  std::uint64_t file_bytes = 0;
  std::vector<std::byte> bytes;
};

FileFormat format_of(const Head& head) {
  if (head.begins_with("\x93NUMPY")) return FileFormat::npy;
  if (is_npz(head.bytes)) return FileFormat::npz;
  return is_safetensors(head.bytes, head.file_bytes) ? FileFormat::safetensors : FileFormat::unknown;
}

/// `path`, or a stand-in if it is not safe within quotes on a command line.
std::string quotable(const fs::path& path, const std::string& suffix) {
  const std::string text = path.string();
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("/._-+=,: ").find(c) != std::string_view::npos;
  });
  return plain ? text : "data" + suffix;
}

/// NumPy's names of the types of IDX files, from the code 8 on.
constexpr std::array<std::string_view, 7> kIdxTypes{"u1", "i1", "", "i2", "i4", "f4", "f8"};

/// An IDX file begins with two zero bytes, a type, and the number of axes. Extents and values are big-endian.
bool is_idx(const Head& head) {
  const std::string_view text = head.text();
  return text.size() >= 4 && text[0] == '\0' && text[1] == '\0' && text[2] >= 0x08 && text[2] <= 0x0E &&
         text[2] != 0x0A;
}

/// A program that saves the array of an IDX file.
std::string idx_program(const Head& head, const std::string& from) {
  const auto axes = std::to_integer<unsigned>(head.bytes[3]);
  const std::string_view type = kIdxTypes.at(std::to_integer<std::size_t>(head.bytes[2]) - 8);
  return fmt::format(
      "import numpy; s = numpy.fromfile('{0}', '>u4', {1}, offset=4); d = numpy.fromfile('{0}', '>{2}', "
      "offset={3}); numpy.save('{4}', d.reshape(s).astype('{2}'))",
      from, axes, type, 4 + 4 * axes, fs::path(from).replace_extension(".npy").string());
}

/// How to convert a file of another kind; empty if its kind is unknown.
std::string conversion(const fs::path& path, const Head& head) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const std::string from = quotable(path, suffix);
  const std::string to = fs::path(from).replace_extension(".npz").string();
  const auto line = [&](std::string_view kind, std::string_view program) {
    return fmt::format("{} files are not read; convert it: python3 -c \"{}\"", kind, program);
  };
  const auto columns = [&](std::string_view kind, std::string_view function) {
    return line(kind, fmt::format("import numpy, pandas; d = pandas.{}('{}'); numpy.savez('{}', **{{c: "
                                  "d[c].to_numpy() for c in d}})",
                                  function, from, to));
  };
  if (head.begins_with("\x1F\x8B"))
    return fmt::format("files in gzip format are not read; unpack it: gunzip -k '{}'", from);
  if (is_idx(head)) return line("IDX", idx_program(head, from));
  if (head.begins_with("PAR1")) return columns("Parquet", "read_parquet");
  if (suffix == ".csv") return columns("CSV", "read_csv");
  if (suffix == ".pt" || suffix == ".pth" || head.text().find("/data.pkl") != std::string_view::npos) {
    return line("PyTorch", fmt::format("import numpy, torch; d = torch.load('{}'); d = d if isinstance(d, "
                                       "dict) else {{'data': d}}; numpy.savez('{}', **{{k: d[k].numpy() for "
                                       "k in d}})",
                                       from, to));
  }
  return {};
}

}  // namespace

std::string_view other_kind(std::string_view head) noexcept {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"version https://git-lfs", "a git-lfs pointer in place of the file. Run `git lfs pull` in its folder"},
      {"<",
       "a page in HTML or XML, as a download leaves if it is refused. Log in if needed, and download again"},
      {"{", "a text in JSON. The index of a model in shards is taken if its name ends in .json"},
      {"PK\x03\x04",
       "a .zip archive, as torch.save and numpy.savez write. Load it with torch.load or numpy.load"},
      {"\x80", "a pickle, as torch.save writes. Load it with torch.load"},
      {"\x93NUMPY", "a .npy file. Load it with numpy.load"},
      {"\x89HDF", "an HDF5 file. Read it with h5py"},
      {"GGUF", "a GGUF file, which llama.cpp reads"},
  };
  const auto* const found =
      std::ranges::find_if(kKinds, [&](const auto& kind) { return head.starts_with(kind.first); });
  return found == std::end(kKinds) ? std::string_view() : found->second;
}

FileFormat file_format(const fs::path& path) { return format_of(Head(path)); }

std::vector<FieldReaderPtr> read_any(const fs::path& path, const FileOptions& options) {
  const Head head(path);
  switch (format_of(head)) {
    case FileFormat::npy:
      return {read_npy(path, options)};
    case FileFormat::npz:
      return read_npz(path, options);
    case FileFormat::safetensors:
      return read_safetensors(path, options);
    case FileFormat::unknown:
      break;
  }
  const std::string advice = conversion(path, head);
  if (!advice.empty()) throw Error(fmt::format("{}: {}", path.string(), advice));
  const std::string_view other = other_kind(head.text());
  if (!other.empty()) throw_malformed(path.string(), 0, "an array", other);
  throw Error(
      fmt::format("{}, byte 0: expected the beginning of a .npy, .npz or .safetensors file, found none of "
                  "them. If the file has no header, save its array with numpy.save.",
                  path.string()));
}

}  // namespace penstock
