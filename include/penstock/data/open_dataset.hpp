#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/data/readers.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace penstock {

struct OpenOptions {
  /// The part to read of a directory that holds several: "train", or "test" (MNIST's "t10k").
  std::string split = "train";
  /// Directories in which a plain name is looked up: they hold a directory of that name, or have that name.
  std::vector<std::filesystem::path> search{};
  FileOptions file{};
};

/// The files that open_dataset reads for `sources`, in order. Throws InvalidArgument if one is not found.
[[nodiscard]] std::vector<std::filesystem::path> dataset_files(
    const std::vector<std::filesystem::path>& sources, const OpenOptions& options = {});

/// Opens files; their content tells the format. A .npy or IDX file (also in gzip format) gives one field. A
/// .npz or .safetensors file gives a field for each array. A directory stands for its files of the wanted
/// split, in the order of their names. If it holds none, and folders of pictures, it stands for fields
/// "image" and "label": see pictures_in_folder, and plain_operations of size 224. A name that is not a path,
/// such as "fashion-mnist", is looked up in `options.search`. Throws InvalidArgument if a source is not
/// found, and Error as the readers do. For CSV, Parquet and PyTorch files the error says how to convert them.
[[nodiscard]] Dataset open_dataset(const std::vector<std::filesystem::path>& sources,
                                   const OpenOptions& options = {});

}  // namespace penstock
