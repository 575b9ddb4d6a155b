#include "data/folder.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/encoded_pictures.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;

/// What a folder holds, in order.
struct Contents {
  std::vector<std::string> folders;
  std::vector<std::string> files;
};

Contents contents_of(const std::string& folder) {
  Contents contents;
  std::error_code failed;
  fs::directory_iterator entry(folder, failed);
  for (; entry != fs::directory_iterator(); entry.increment(failed)) {
    std::error_code error;  // a link that leads nowhere counts as a file
    const bool is_folder = entry->is_directory(error);
    (is_folder ? contents.folders : contents.files).push_back(entry->path().filename().string());
  }
  if (failed) throw Error(fmt::format("{} cannot be read as a folder: {}.", folder, failed.message()));
  std::ranges::sort(contents.folders);
  std::ranges::sort(contents.files);
  return contents;
}

/// True for the names that torchvision's ImageFolder takes for pictures.
bool is_picture(std::string_view file) {
  constexpr std::array<std::string_view, 9> kSuffixes = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                         ".pgm", ".tif",  ".tiff", ".webp"};
  std::string name(file.substr(file.size() - std::min<std::size_t>(file.size(), 5)));
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return std::ranges::any_of(kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::string below(const std::string& folder, const std::string& name) { return folder + '/' + name; }

/// `folder` and all folders below it, with their files.
using Folders = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_folders(const std::string& folder, Folders& all) {
  Contents contents = contents_of(folder);
  for (const std::string& name : contents.folders) add_folders(below(folder, name), all);
  all.emplace_back(folder, std::move(contents.files));
}

void add_pictures(const std::string& folder, Names& paths) {
  Folders all;
  add_folders(folder, all);
  std::ranges::sort(all);
  for (const auto& [path, files] : all) {
    for (const std::string& file : files) {
      if (is_picture(file)) paths.add(below(path, file));
    }
  }
}

/// Without a slash at its end, which paths below it have by themselves.
std::string plain(const fs::path& folder) {
  std::string path = folder.string();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

LabelledPictures pictures_in_folder(const fs::path& folder) {
  const std::string root = plain(folder);
  LabelledPictures found;
  found.classes = contents_of(root).folders;
  if (found.classes.empty()) {
    throw Error(fmt::format(
        "{} holds no folders: give a folder that has a folder of pictures for each class.", root));
  }
  Names paths;
  for (std::size_t label = 0; label < found.classes.size(); ++label) {
    const std::string of_class = below(root, found.classes[label]);
    add_pictures(of_class, paths);
    if (paths.size() == found.labels.size()) {
      throw Error(fmt::format(
          "{} holds no pictures, and a folder stands for each class: add pictures or remove it.", of_class));
    }
    found.labels.resize(paths.size(), static_cast<std::int64_t>(label));
  }
  found.pictures = pictures_in_files(std::move(paths));
  return found;
}

bool is_picture_folder(const fs::path& folder) {
  const std::string root = plain(folder);
  const Contents contents = contents_of(root);
  if (contents.folders.empty()) return false;
  return std::ranges::any_of(contents_of(below(root, contents.folders.front())).files, is_picture);
}

}  // namespace penstock
