#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/data/readers.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace penstock {

struct OpenOptions {
  /// Which part of a directory that holds several: "train", or "test" (MNIST's "t10k").
  std::string split = "train";
  /// Where a plain name is looked up: directories that hold a directory of that name, or are it.
  std::vector<std::filesystem::path> search{};
  FileOptions file{};
};

/// The files that open_dataset reads for `sources`, in its order. Throws InvalidArgument for what is not
/// found.
[[nodiscard]] std::vector<std::filesystem::path> dataset_files(
    const std::vector<std::filesystem::path>& sources, const OpenOptions& options = {});

/// Opens files, told apart by their content: .npy, IDX, and IDX in gzip format, a field each; .npz and
/// .safetensors, a field for each array. Directories stand for their files of the wanted split, in the order
/// of their names, and names that are no path, such as "fashion-mnist", are looked up in `options.search`.
/// Throws InvalidArgument for what is not found, and Error as the readers do; for CSV, Parquet and PyTorch
/// files the error says how to convert them.
[[nodiscard]] Dataset open_dataset(const std::vector<std::filesystem::path>& sources,
                                   const OpenOptions& options = {});

}  // namespace penstock
