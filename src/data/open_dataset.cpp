#include "data/file.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/data/open_dataset.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

namespace penstock {

namespace {

namespace fs = std::filesystem;

enum class Format { npy, idx, unknown };

Format format_of(const fs::path& path) {
  const File file(path);
  std::array<std::byte, 6> head{};
  const std::size_t got = file.read(0, head);
  const std::string_view text(reinterpret_cast<const char*>(head.data()), got);
  if (text == "\x93NUMPY") return Format::npy;
  const bool gzip = text.substr(0, 2) == "\x1F\x8B";
  const bool idx = got >= 4 && text[0] == '\0' && text[1] == '\0' && text[2] >= 0x08 && text[2] <= 0x0E;
  return gzip || idx ? Format::idx : Format::unknown;
}

FieldReaderPtr open_file(const fs::path& path, const OpenOptions& options) {
  switch (format_of(path)) {
    case Format::npy:
      return read_npy(path, options.file);
    case Format::idx:
      return read_idx(path, options.file);
    case Format::unknown:
      break;
  }
  throw Error(
      fmt::format("{}, byte 0: expected the magic of a .npy file (\"\\x93NUMPY\"), of an IDX file (two "
                  "zero bytes and a type) or of gzip data (1f 8b), found none of them. A file without a "
                  "header is opened by read_raw, with the dtype and shape of a sample.",
                  path.string()));
}

// Of the MNIST family's names, "train-images-..." and "t10k-labels-...".
bool belongs_to(const std::string& file_name, std::string_view split) {
  const std::string_view prefix = split == "test" ? "t10k" : split;
  return file_name.starts_with(prefix) || file_name.starts_with(split);
}

// What cannot be looked at is no directory either; who opens it as a file says why.
bool leads_to_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_missing(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() == fs::file_type::not_found;
}

std::vector<fs::path> files_of(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::directory_iterator entry(directory, failed);
  for (; entry != fs::directory_iterator(); entry.increment(failed)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    std::error_code error;
    if (entry->is_regular_file(error)) files.push_back(entry->path());
    if (error) {  // such as a link that leads to itself: the other files are as good as without it
      log(LogLevel::warning, fmt::format("{} is left out: {}.", entry->path().string(), error.message()));
    }
  }
  if (failed) {
    throw Error(fmt::format("{} cannot be read as a directory: {}.", directory.string(), failed.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> sources_in(const fs::path& directory, const OpenOptions& options) {
  const fs::path part = directory / options.split;
  const bool has_part = leads_to_directory(part);
  std::vector<fs::path> arrays;
  std::vector<fs::path> of_split;
  for (const fs::path& file : files_of(has_part ? part : directory)) {
    const Format format = format_of(file);
    const bool wanted = has_part || belongs_to(file.filename().string(), options.split);
    if (format == Format::npy) arrays.push_back(file);
    if (format == Format::idx && wanted) of_split.push_back(file);
  }
  if (!of_split.empty()) return of_split;
  if (arrays.empty()) {
    throw InvalidArgument(
        fmt::format("{} holds no .npy files, and no IDX files of the split '{}' (files called {}-...).",
                    directory.string(), options.split, options.split == "test" ? "t10k" : options.split));
  }
  return arrays;
}

fs::path find_named(const fs::path& name, const OpenOptions& options) {
  for (const fs::path& place : options.search) {
    if (leads_to_directory(place / name)) return place / name;
    if (place.filename() == name && leads_to_directory(place)) return place;
  }
  std::vector<std::string> looked;
  looked.reserve(options.search.size());
  for (const fs::path& place : options.search) looked.push_back(place.string());
  throw InvalidArgument(fmt::format("There is no file or directory '{}', and no dataset of that name{}{}.",
                                    name.string(), looked.empty() ? "" : " in ", fmt::join(looked, ", ")));
}

}  // namespace

Dataset open_dataset(const std::vector<fs::path>& sources, const OpenOptions& options) {
  if (sources.empty()) throw InvalidArgument("No dataset was named: give files, a directory or a name.");
  std::vector<FieldReaderPtr> readers;
  for (const fs::path& source : sources) {
    if (source.empty()) {
      throw InvalidArgument("The name of a dataset is empty: give a file, a directory or a name.");
    }
    const bool plain_name = !source.has_parent_path() && is_missing(source);
    const fs::path found = plain_name ? find_named(source, options) : source;
    if (!leads_to_directory(found)) {
      readers.push_back(open_file(found, options));
      continue;
    }
    for (const fs::path& file : sources_in(found, options)) readers.push_back(open_file(file, options));
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
