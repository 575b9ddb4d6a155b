#include "doctor/elf_symbols.hpp"

#include <penstock/doctor/code_places.hpp>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock {

namespace {

using Address = std::pair<std::filesystem::path, std::uint64_t>;
using KnownPlaces = std::map<Address, std::vector<CodePlace>>;

/// True also for a name that is not of a regular file here, such as one of another process's descriptors.
bool has_changed(const std::filesystem::path& file, std::int64_t since) {
  struct stat now{};
  if (file.native().starts_with("/proc/") || ::stat(file.c_str(), &now) != 0) return true;
  return !S_ISREG(now.st_mode) || now.st_mtime > since;
}

/// The runtime's own functions are in the program if it is linked statically.
bool is_cuda_function(std::string_view name) {
  for (const std::string_view known : {"cuda", "__cuda", "libcudart_static"}) {
    if (name.starts_with(known)) return true;
  }
  return name.size() > 2 && name.starts_with("cu") && std::isupper(static_cast<unsigned char>(name[2])) != 0;
}

/// Inlined functions of libraries are in the program, too.
bool is_user_source(std::string_view file) {
  for (const std::string_view folder : {"/usr/include/", "/usr/lib/", "/usr/local/cuda"}) {
    if (file.starts_with(folder)) return false;
  }
  return file.find("/include/c++/") == std::string_view::npos;
}

/// The names of templates begin with the type that they return.
bool is_penstocks(const CodePlace& place) {
  const std::string_view name =
      std::string_view(place.function).substr(0, place.function.find_first_of("(<"));
  return name.starts_with("penstock::") || name.find(" penstock::") != std::string_view::npos;
}

/// A lambda belongs to what calls it, also through the standard library.
bool belongs_to_penstock(std::span<const CodePlace> outwards) {
  const auto owner = std::ranges::find_if(outwards, [](const CodePlace& place) {
    return place.function != "operator()" && !place.function.starts_with("std::");
  });
  return owner != outwards.end() && is_penstocks(*owner);
}

/// Of the innermost place; with `penstocks`, it may be one of penstock's own.
std::string name_of(const CodeStack& stack, const KnownPlaces& known, bool penstocks) {
  std::vector<CodePlace> places;
  std::vector<std::string> programs;
  for (const CodeAddress& call : stack.calls) {
    for (const CodePlace& place : known.at({call.file, call.address})) {
      places.push_back(place);
      programs.push_back(call.file.filename().string());
    }
  }
  const auto is_wanted = [&](std::size_t i) {
    return penstocks || !belongs_to_penstock(std::span(places).subspan(i));
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    const CodePlace& place = places[i];
    if (place.line == 0 || !is_user_source(place.file) || !is_wanted(i)) continue;
    const std::string line =
        fmt::format("{}({})", std::filesystem::path(place.file).lexically_normal().string(), place.line);
    return place.function.empty() ? line : line + ": " + place.function;
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::string& function = places[i].function;
    if (!function.empty() && !is_cuda_function(function) && is_wanted(i))
      return fmt::format("{}: {}", programs[i], function);
  }
  return {};
}

/// In a program that uses penstock, the line is the program's.
std::string name_of(const CodeStack& stack, const KnownPlaces& known) {
  std::string name = name_of(stack, known, false);
  return name.empty() ? name_of(stack, known, true) : name;
}

KnownPlaces find_places(Recording& recording, CodeReader reader) {
  std::map<std::filesystem::path, std::vector<std::uint64_t>> addresses;
  for (const CodeStack& stack : recording.code_stacks) {
    for (const CodeAddress& call : stack.calls) addresses[call.file].push_back(call.address);
  }
  KnownPlaces known;
  for (auto& [file, list] : addresses) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    for (const std::uint64_t address : list) known[{file, address}];
    if (has_changed(file, recording.began)) {
      recording.timeline.notes.push_back(
          fmt::format("Places in {}: the file has changed since the recording, or is gone.", file.string()));
      continue;
    }
    const std::vector<std::vector<CodePlace>> found = reader(file, list);
    const std::vector<std::string> functions = elf_functions(file, list);
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::vector<CodePlace>& places = known[{file, list[i]}];
      if (i < found.size()) places = found[i];
      if (!functions[i].empty()) places.push_back({functions[i], {}, 0});
    }
  }
  return known;
}

}  // namespace

void name_code_places(Recording& recording, CodeReader reader) {
  const KnownPlaces known = find_places(recording, reader);
  Timeline& timeline = recording.timeline;
  // Several calls may be on one line.
  std::unordered_map<std::string, std::uint32_t> names;
  std::unordered_map<std::uint32_t, std::uint32_t> renumbered;
  for (const CodeStack& stack : recording.code_stacks) {
    if (std::string name = name_of(stack, known); !name.empty()) timeline.names[stack.name] = std::move(name);
    renumbered[stack.name] = names.try_emplace(timeline.names[stack.name], stack.name).first->second;
  }
  for (TimelineHostSpan& span : timeline.host) {
    const auto known_name = renumbered.find(span.name);
    if (known_name != renumbered.end()) span.name = known_name->second;
  }
}

}  // namespace penstock
