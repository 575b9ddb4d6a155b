#pragma once

#include "doctor/read/code_places.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// Asks addr2line, of binutils or LLVM, for the lines of compiled code. Without one of them it knows nothing.
/// It asks about an address once, as several processes of one program have the same: files may not change
/// meanwhile.
class LineReader {
 public:
  /// All questions together take no longer than `patience`. Other time does not count.
  explicit LineReader(std::chrono::milliseconds patience = std::chrono::seconds(10));

  [[nodiscard]] std::vector<std::vector<CodePlace>> operator()(const std::filesystem::path& file,
                                                               std::span<const std::uint64_t> addresses);

 private:
  std::chrono::nanoseconds patience_;  ///< that is left
  std::map<std::filesystem::path, std::map<std::uint64_t, std::vector<CodePlace>>> known_;
};

/// What addr2line -a -f -i printed, in the order of the addresses. Anything else is left out.
[[nodiscard]] std::vector<std::vector<CodePlace>> parse_lines(const std::string& text);

}  // namespace penstock::cli
