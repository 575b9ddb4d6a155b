#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The function at each address of an ELF file of 64 bits, from its tables of symbols; "" if there is none.
/// Addresses are in ascending order. Never throws because of the file's contents.
[[nodiscard]] std::vector<std::string> elf_functions(const std::filesystem::path& file,
                                                     std::span<const std::uint64_t> addresses);

}  // namespace penstock
