#pragma once

#include "run/figures.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::cli {

/// What `penstock run` says about the copies of a program: the figures of all its processes together.
class RunReport {
 public:
  /// Reads the files in `folder`.
  explicit RunReport(const std::filesystem::path& folder);

  /// Lines, each with its newline.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json(const std::vector<std::string>& command, int status) const;

 private:
  void add(const run::Figures& process);
  [[nodiscard]] run::Count taken() const;
  /// By the rates that the driver showed; sizes that it did not show count as nothing.
  [[nodiscard]] double seconds_saved() const;

  std::size_t processes_ = 0;
  run::Figures figures_;
};

/// "NAME=folder", for the environment of the program.
[[nodiscard]] std::string figures_variable(const std::filesystem::path& folder);

}  // namespace penstock::cli
