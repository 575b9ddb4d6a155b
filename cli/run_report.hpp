#pragma once

#include "run/figures.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::cli {

/// What `penstock run --feed` did with the batches of a DataLoader.
struct FedLoader {
  std::string place;   ///< of the program, where it was made
  std::string device;  ///< empty: it was not fed
  std::string why;     ///< it was left alone; empty: it was fed
  std::uint64_t batches = 0;
  std::uint64_t fed = 0;
};

/// What `penstock run` says about the copies of a program: the figures of all its processes together.
class RunReport {
 public:
  /// Reads the files in `folder`. `feeds`: it was `penstock run --feed`.
  RunReport(const std::filesystem::path& folder, bool feeds);

  /// Lines, each with its newline.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json(const std::vector<std::string>& command, int status) const;

 private:
  void add(const run::Figures& process);
  [[nodiscard]] run::Count taken() const;
  /// By the rates that the driver showed; sizes that it did not show count as nothing.
  [[nodiscard]] double seconds_saved() const;

  void add_loaders(const std::filesystem::path& file);
  [[nodiscard]] bool has_nothing_to_gain() const;

  std::size_t processes_ = 0;
  run::Figures figures_;
  bool feeds_;
  std::vector<FedLoader> loaders_;
};

}  // namespace penstock::cli
