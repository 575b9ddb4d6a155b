#include "data/weight_paths.hpp"

#include "data/file.hpp"
#include "data/folder.hpp"
#include "data/malformed.hpp"

#include <penstock/core/file_error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <set>
#include <string>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr std::uint64_t kLongestIndex = std::uint64_t{256} << 20;

std::string read_text(const File& file) {
  if (file.size() > kLongestIndex) {
    throw_malformed(file.name(), 0, "the index of a model in shards", fmt::format("{} bytes", file.size()));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Paths shards_of(const fs::path& index) {
  const File file(index);
  const auto content = nlohmann::json::parse(read_text(file), nullptr, false);
  const auto map = content.is_object() ? content.find("weight_map") : content.end();
  if (map == content.end() || !map->is_object() || map->empty() ||
      !std::ranges::all_of(*map, [](const auto& shard) { return shard.is_string(); })) {
    throw_malformed(file.name(), 0, "an index, with the file of each tensor under 'weight_map'", "none");
  }
  std::set<fs::path> shards;
  for (const auto& shard : *map) shards.insert(index.parent_path() / shard.template get<std::string>());
  return {shards.begin(), shards.end()};
}

Paths in_folder(const fs::path& folder) {
  Paths indices;
  Paths files;
  for (fs::path& path : files_of(folder)) {
    const std::string name = path.filename().string();
    if (name == "model.safetensors.index.json") return shards_of(path);
    if (name.ends_with(".safetensors.index.json")) indices.push_back(path);
    if (name.ends_with(".safetensors")) files.push_back(std::move(path));
  }
  if (indices.size() == 1) return shards_of(indices.front());
  if (files.empty()) {
    throw FileError(fmt::format("{} holds no .safetensors file. Name a file, or the folder that it lies in.",
                                folder.string()),
                    folder.string(), ENOENT);
  }
  return files;
}

}  // namespace

Paths weight_paths(const Paths& paths) {
  Paths found;
  for (const fs::path& path : paths) {
    Paths meant = leads_to_directory(path)      ? in_folder(path)
                  : path.extension() == ".json" ? shards_of(path)
                                                : Paths{path};
    std::ranges::move(meant, std::back_inserter(found));
  }
  return found;
}

}  // namespace penstock
