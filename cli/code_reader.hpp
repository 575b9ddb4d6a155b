#pragma once

#include <penstock/doctor/code_places.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// Asks addr2line, of binutils or LLVM, for the lines of compiled code. Without one of them it knows nothing.
class LineReader {
 public:
  /// All questions together take no longer than `patience`.
  explicit LineReader(std::chrono::milliseconds patience = std::chrono::seconds(10));

  [[nodiscard]] std::vector<std::vector<CodePlace>> operator()(
      const std::filesystem::path& file, std::span<const std::uint64_t> addresses) const;

 private:
  std::chrono::steady_clock::time_point deadline_;
};

/// What addr2line -a -f -i printed, in the order of the addresses. Anything else is left out.
[[nodiscard]] std::vector<std::vector<CodePlace>> parse_lines(const std::string& text);

}  // namespace penstock::cli
