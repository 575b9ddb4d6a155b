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

/// Opens files, one field each, told apart by their content (.npy, IDX, IDX in gzip format); directories,
/// whose files of the wanted split are taken in the order of their names; and names that are no path, such as
/// "fashion-mnist", found through `options.search`. Throws InvalidArgument for what is not found, and Error
/// as the readers do.
[[nodiscard]] Dataset open_dataset(const std::vector<std::filesystem::path>& sources,
                                   const OpenOptions& options = {});

}  // namespace penstock
