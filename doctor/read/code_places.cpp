#include "doctor/read/code_places.hpp"

#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/frame_names.hpp"

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

/// What calls main() in a program that has no libraries.
bool is_start(std::string_view name) { return name == "_start" || name.starts_with("__libc_start"); }

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

/// What is known of a stack's calls, the innermost place first.
struct StackPlaces {
  std::vector<CodePlace> places;
  std::vector<std::size_t> calls;  ///< by place: its call
  std::vector<bool> has_lines;     ///< by call: the line of one of its places is known
};

StackPlaces places_of(const CodeStack& stack, const KnownPlaces& known) {
  StackPlaces all;
  for (std::size_t call = 0; call < stack.calls.size(); ++call) {
    const std::vector<CodePlace>& places = known.at({stack.calls[call].file, stack.calls[call].address});
    all.places.insert(all.places.end(), places.begin(), places.end());
    all.calls.insert(all.calls.end(), places.size(), call);
    all.has_lines.push_back(
        std::ranges::any_of(places, [](const CodePlace& place) { return place.line != 0; }));
  }
  return all;
}

bool is_line(const StackPlaces& all, std::size_t i) {
  return all.places[i].line != 0 && is_user_source(all.places[i].file);
}

bool is_function(const StackPlaces& all, std::size_t i) {
  return !all.places[i].function.empty() && !is_cuda_function(all.places[i].function);
}

/// A frame has a line, or its function stands for a call without lines.
bool is_outer_frame(const StackPlaces& all, std::size_t i) {
  if (is_line(all, i)) return true;
  const std::size_t call = all.calls[i];
  const bool is_first = i == 0 || all.calls[i - 1] != call;
  return is_first && !all.has_lines[call] && is_function(all, i) && !is_start(all.places[i].function);
}

std::string text_of(const CodeStack& stack, const StackPlaces& all, std::size_t i) {
  const CodePlace& place = all.places[i];
  if (!is_line(all, i))
    return fmt::format("{}: {}", stack.calls[all.calls[i]].file.filename().string(), place.function);
  const std::string line =
      fmt::format("{}({})", std::filesystem::path(place.file).lexically_normal().string(), place.line);
  return place.function.empty() ? line : line + ": " + place.function;
}

/// Of the innermost place, and of the frames around it. With `penstocks`, they may be penstock's own. Empty:
/// nothing is known.
std::vector<std::string> names_of(const CodeStack& stack, const StackPlaces& all, bool penstocks) {
  const auto is_wanted = [&](std::size_t i) {
    return penstocks || !belongs_to_penstock(std::span(all.places).subspan(i));
  };
  const auto first_that = [&](auto&& is_so) {
    std::size_t i = 0;
    while (i < all.places.size() && !(is_so(all, i) && is_wanted(i))) ++i;
    return i;
  };
  std::size_t innermost = first_that(is_line);
  if (innermost == all.places.size()) innermost = first_that(is_function);
  if (innermost == all.places.size()) return {};
  std::vector<std::string> names{text_of(stack, all, innermost)};
  for (std::size_t i = innermost + 1; i < all.places.size(); ++i) {
    if (is_outer_frame(all, i) && is_wanted(i)) names.push_back(text_of(stack, all, i));
  }
  return names;
}

/// In a program that uses penstock, the lines are the program's.
std::vector<std::string> names_of(const CodeStack& stack, const KnownPlaces& known) {
  const StackPlaces all = places_of(stack, known);
  std::vector<std::string> names = names_of(stack, all, false);
  return names.empty() ? names_of(stack, all, true) : names;
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
    for (std::size_t i = 0; i < std::min(list.size(), found.size()); ++i) known[{file, list[i]}] = found[i];
    if (std::ranges::all_of(found, &std::vector<CodePlace>::empty))
      recording.timeline.notes.push_back(
          fmt::format("Places in {}: its lines and functions are not known. They need addr2line, which comes "
                      "with binutils, and lines need a build with -g.",
                      file.string()));
  }
  return known;
}

}  // namespace

void name_code_places(Recording& recording, CodeReader reader) {
  const KnownPlaces known = find_places(recording, reader);
  Timeline& timeline = recording.timeline;
  FrameNames frames(timeline);
  // Several calls may be on one line.
  std::unordered_map<std::string, std::uint32_t> texts;
  std::unordered_map<std::uint32_t, std::uint32_t> renumbered;
  for (const CodeStack& stack : recording.code_stacks) {
    const std::vector<std::string> names = names_of(stack, known);
    if (!names.empty()) timeline.names[stack.name] = names[0];
    std::uint32_t caller = kNoName;
    for (std::size_t i = names.size(); i > 1; --i) {
      const auto [text, added] =
          texts.try_emplace(names[i - 1], static_cast<std::uint32_t>(timeline.names.size()));
      if (added) timeline.names.push_back(names[i - 1]);
      caller = frames.called_by(text->second, caller);
    }
    const std::uint32_t own = texts.try_emplace(timeline.names[stack.name], stack.name).first->second;
    renumbered[stack.name] = frames.called_by(own, caller);
  }
  for (TimelineHostSpan& span : timeline.host) {
    const auto known_name = renumbered.find(span.name);
    if (known_name != renumbered.end()) span.name = known_name->second;
  }
}

}  // namespace penstock
