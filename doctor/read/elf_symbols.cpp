#include "doctor/read/elf_symbols.hpp"

#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

namespace penstock {

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // of a table

class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path& file) : in_(file, std::ios::binary) {
    Elf64_Ehdr header{};
    if (!read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
      return;
    sections_.resize(header.e_shnum);
    if (!read(header.e_shoff, sections_.data(), sections_.size() * sizeof sections_[0])) sections_.clear();
  }

  /// Calls `see` with each function and its name.
  template <typename See>
  void for_each_function(std::uint32_t table, const See& see) {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != table || section.sh_link >= sections_.size()) continue;
      const std::vector<char> names = contents(sections_[section.sh_link]);
      const std::vector<char> symbols = contents(section);
      for (std::size_t at = 0; symbols.size() - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol{};
        std::memcpy(&symbol, symbols.data() + at, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
        if (symbol.st_name >= names.size()) continue;
        const char* const name = names.data() + symbol.st_name;
        see(symbol, std::string_view(name, ::strnlen(name, names.size() - symbol.st_name)));
      }
    }
  }

 private:
  bool read(std::uint64_t offset, void* to, std::size_t bytes) {
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    return static_cast<std::size_t>(in_.gcount()) == bytes;
  }
  /// Empty if the file does not hold them.
  std::vector<char> contents(const Elf64_Shdr& section) {
    in_.clear();
    in_.seekg(0, std::ios::end);
    const auto size = static_cast<std::uint64_t>(std::max<std::streamoff>(0, in_.tellg()));
    if (section.sh_size > kMostBytes || section.sh_offset > size ||
        section.sh_size > size - section.sh_offset)
      return {};
    std::vector<char> bytes(static_cast<std::size_t>(section.sh_size));
    if (!read(section.sh_offset, bytes.data(), bytes.size())) bytes.clear();
    return bytes;
  }

  std::ifstream in_;
  std::vector<Elf64_Shdr> sections_;
};

/// Without what a compiler adds to the name of a function that it has cloned, such as `.isra.0`.
std::string demangled(std::string_view name) {
  std::string text(name.substr(0, name.find('.', 1)));
  if (!name.starts_with("_Z")) return text;  // a function of C, whose name may be a type's mangled one
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && plain != nullptr ? plain.get() : text;
}

}  // namespace

std::vector<std::string> elf_functions(const std::filesystem::path& file,
                                       std::span<const std::uint64_t> addresses) {
  std::vector<std::string> names(addresses.size());
  ElfFile elf(file);
  // The second has only what other files may call.
  for (const std::uint32_t table : {SHT_SYMTAB, SHT_DYNSYM}) {
    elf.for_each_function(table, [&](const Elf64_Sym& symbol, std::string_view name) {
      auto address = std::lower_bound(addresses.begin(), addresses.end(), symbol.st_value);
      for (; address != addresses.end() && *address - symbol.st_value < symbol.st_size; ++address) {
        std::string& known = names[static_cast<std::size_t>(address - addresses.begin())];
        if (known.empty()) known = name;
      }
    });
  }
  for (std::string& name : names) name = demangled(name);
  return names;
}

}  // namespace penstock
