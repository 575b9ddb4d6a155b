#include "data/file_format.hpp"
#include "data/folder.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/data/pictures.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <system_error>

namespace penstock {

namespace {

namespace fs = std::filesystem;

// True for names of the MNIST family: "train-images-...", "t10k-labels-...".
bool belongs_to(const std::string& file_name, std::string_view split) {
  const std::string_view prefix = split == "test" ? "t10k" : split;
  return file_name.starts_with(prefix) || file_name.starts_with(split);
}

bool is_missing(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() == fs::file_type::not_found;
}

std::vector<fs::path> sources_in(const fs::path& directory, const OpenOptions& options) {
  const fs::path part = directory / options.split;
  const bool has_part = leads_to_directory(part);
  std::vector<fs::path> arrays;
  std::vector<fs::path> of_split;
  for (const fs::path& file : files_of(has_part ? part : directory)) {
    const FileFormat format = file_format(file);
    const bool wanted = has_part || belongs_to(file.filename().string(), options.split);
    if (format == FileFormat::idx) {
      if (wanted) of_split.push_back(file);
    } else if (format != FileFormat::unknown) {
      arrays.push_back(file);
    }
  }
  if (!of_split.empty()) return of_split;
  if (arrays.empty()) {
    fs::path place = has_part ? part : directory;
    if (is_picture_folder(place)) return {std::move(place)};
    throw InvalidArgument(
        fmt::format("{} holds no .npy, .npz or .safetensors files, no folders of pictures, and no IDX files "
                    "of the split '{}' (files called {}-...).",
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

std::vector<fs::path> dataset_files(const std::vector<fs::path>& sources, const OpenOptions& options) {
  if (sources.empty()) throw InvalidArgument("No dataset was named: give files, a directory or a name.");
  std::vector<fs::path> files;
  for (const fs::path& source : sources) {
    if (source.empty()) {
      throw InvalidArgument("The name of a dataset is empty: give a file, a directory or a name.");
    }
    const bool plain_name = !source.has_parent_path() && is_missing(source);
    const fs::path found = plain_name ? find_named(source, options) : source;
    if (!leads_to_directory(found)) {
      files.push_back(found);
      continue;
    }
    for (fs::path& file : sources_in(found, options)) files.push_back(std::move(file));
  }
  return files;
}

Dataset open_dataset(const std::vector<fs::path>& sources, const OpenOptions& options) {
  std::vector<FieldReaderPtr> readers;
  for (const fs::path& file : dataset_files(sources, options)) {
    auto fields = leads_to_directory(file) ? read_labelled_pictures(pictures_in_folder(file),
                                                                    {.operations = plain_operations(224)})
                                           : read_any(file, options.file);
    for (FieldReaderPtr& reader : fields) readers.push_back(std::move(reader));
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
