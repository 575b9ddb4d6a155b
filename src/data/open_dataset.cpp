#include "data/file_format.hpp"
#include "data/folder.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/data/pictures.hpp>

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> sources_in(const fs::path& directory) {
  std::vector<fs::path> arrays;
  for (fs::path& file : files_of(directory)) {
    if (file_format(file) != FileFormat::unknown) arrays.push_back(std::move(file));
  }
  if (!arrays.empty()) return arrays;
  if (is_picture_folder(directory)) return {directory};
  throw InvalidArgument(fmt::format(
      "{} holds no .npy, .npz or .safetensors files, and no folders of pictures; name the files, or the "
      "folder that holds them.",
      directory.string()));
}

}  // namespace

std::vector<fs::path> dataset_files(const std::vector<fs::path>& sources) {
  if (sources.empty()) throw InvalidArgument("No dataset was named: give files or a directory.");
  std::vector<fs::path> files;
  for (const fs::path& source : sources) {
    if (source.empty()) throw InvalidArgument("The name of a dataset is empty: give a file or a directory.");
    std::error_code error;
    if (fs::status(source, error).type() == fs::file_type::not_found)
      throw InvalidArgument(fmt::format("There is no file or directory '{}'.", source.string()));
    if (!leads_to_directory(source)) {
      files.push_back(source);
      continue;
    }
    for (fs::path& file : sources_in(source)) files.push_back(std::move(file));
  }
  return files;
}

Dataset open_dataset(const std::vector<fs::path>& sources, const FileOptions& options) {
  std::vector<FieldReaderPtr> readers;
  for (const fs::path& file : dataset_files(sources)) {
    auto fields = leads_to_directory(file) ? read_labelled_pictures(pictures_in_folder(file),
                                                                    {.operations = plain_operations(224)})
                                           : read_any(file, options);
    for (FieldReaderPtr& reader : fields) readers.push_back(std::move(reader));
  }
  return Dataset(std::move(readers));
}

}  // namespace penstock
