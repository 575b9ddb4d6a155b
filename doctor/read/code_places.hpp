#pragma once

#include "doctor/read/recording.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A function of compiled code, and a line in it.
struct CodePlace {
  std::string function;  ///< as in the source; empty: not known
  std::string file;      ///< of the source; empty: not known
  std::uint32_t line = 0;
};

/// Says for each of the addresses of a program or library what is there: first the functions that were
/// compiled into others, the innermost first. It may say nothing of any of them.
using CodeReader = FunctionRef<std::vector<std::vector<CodePlace>>(const std::filesystem::path& file,
                                                                   std::span<const std::uint64_t> addresses)>;

/// Names the places of a recording's compiled code: "copy.cpp(12): send(Batch&)" for the innermost call whose
/// line `reader` knows, or "program: send(Batch&)" if it knows only functions. If a file has changed since it
/// was recorded, or `reader` knows nothing of it, a note says so, and its places are addresses.
void name_code_places(Recording& recording, CodeReader reader);

}  // namespace penstock
