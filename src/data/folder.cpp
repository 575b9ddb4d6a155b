#include "data/folder.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

namespace penstock {

namespace fs = std::filesystem;

bool leads_to_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<fs::path> files_of(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::directory_iterator entry(directory, failed);
  for (; entry != fs::directory_iterator(); entry.increment(failed)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    std::error_code error;
    if (entry->is_regular_file(error)) files.push_back(entry->path());
    if (error) {  // such as a link that leads to itself: the other files can still be read
      log_warning(fmt::format("{} is left out: {}.", entry->path().string(), error.message()));
    }
  }
  if (failed) {
    throw Error(fmt::format("{} cannot be read as a directory: {}.", directory.string(), failed.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace penstock
