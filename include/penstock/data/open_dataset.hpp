#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/data/readers.hpp>

#include <filesystem>
#include <vector>

namespace penstock {

/// The files that open_dataset reads for `sources`, in order. Throws InvalidArgument if there is none, and
/// for a source that is missing.
[[nodiscard]] std::vector<std::filesystem::path> dataset_files(
    const std::vector<std::filesystem::path>& sources);

/// Opens files; their content tells the format. A .npy file gives one field. A .npz or .safetensors file
/// gives a field for each array. A directory stands for its files of these formats, in the order of their
/// names. If it holds none, and folders of pictures, it stands for fields "image" and "label": see
/// pictures_in_folder, and plain_operations of size 224. Throws InvalidArgument if there is nothing to open,
/// and Error as the readers do. For files of other known kinds, such as CSV, Parquet, PyTorch, IDX and gzip,
/// the error says how to convert them.
[[nodiscard]] Dataset open_dataset(const std::vector<std::filesystem::path>& sources,
                                   const FileOptions& options = {});

}  // namespace penstock
