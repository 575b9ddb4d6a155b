#pragma once

#include <cstddef>
#include <string_view>

/// Which of Python's files say where a program is. The recorder and the reader of its recordings agree on it.
namespace penstock::recording {

/// Of the program itself: neither installed, nor of Python's own library, nor of the interpreter.
[[nodiscard]] constexpr bool is_user_file(std::string_view file) noexcept {
  if (file.starts_with('<')) return file == "<stdin>";
  for (const std::string_view part : {"/site-packages/", "/dist-packages/", "/lib/python3"}) {
    if (file.find(part) != std::string_view::npos) return false;
  }
  return !file.empty() && file != "?";
}

/// The path within the installed package that a file is of. Empty: it is of none, or of one that only does
/// what others ask for. A program after `python -c` counts as a package: a process that multiprocessing
/// spawned begins with one that is not the program's own.
[[nodiscard]] constexpr std::string_view path_in_package(std::string_view file) noexcept {
  if (file == "<string>") return file;
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    const std::size_t at = file.rfind(folder);
    if (at == std::string_view::npos) continue;
    std::string_view path = file;
    path.remove_prefix(at + folder.size());
    for (const std::string_view known : {"torch/", "numpy/", "penstock/"}) {
      if (path.starts_with(known)) return {};
    }
    return path;
  }
  return {};
}

}  // namespace penstock::recording
