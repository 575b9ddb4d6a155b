#include "preload.hpp"

#include <penstock/core/error.hpp>

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

/// Of a program for the machine that this command was built for. False if it has no loader.
bool names_loader(std::ifstream& in, const Elf64_Ehdr& header) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    in.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof part));
    if (in.read(reinterpret_cast<char*>(&part), sizeof part) && part.p_type == PT_INTERP) return true;
  }
  return false;
}

/// True if it runs with rights that its user does not have.
bool changes_rights(const fs::path& program) {
  struct stat facts{};
  if (::stat(program.c_str(), &facts) != 0) return false;
  return ((facts.st_mode & S_ISUID) != 0 && facts.st_uid != ::getuid()) ||
         ((facts.st_mode & S_ISGID) != 0 && facts.st_gid != ::getgid());
}

[[noreturn]] void refuse(const fs::path& program, std::string_view why) {
  throw Error(
      fmt::format("{} {}, so its copies cannot be taken; run it without penstock", program.string(), why));
}

}  // namespace

void require_preloadable(const fs::path& program) {
  std::ifstream in(program, std::ios::binary);
  Elf64_Ehdr header{};
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  if (std::memcmp(&header, "#!", 2) == 0) {
    std::string line, interpreter;
    in.clear();
    in.seekg(2);
    std::getline(in, line);
    std::istringstream(line) >> interpreter;
    if (!interpreter.empty() && interpreter != program) require_preloadable(interpreter);
    return;
  }
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
  if (header.e_ident[EI_CLASS] == ELFCLASS32) refuse(program, "is a program of 32 bits");
  if (!names_loader(in, header)) refuse(program, "is statically linked");
  if (changes_rights(program)) refuse(program, "runs with the rights of its owner (setuid or setgid)");
}

}  // namespace penstock::cli
