#pragma once

#include "run/figures.hpp"

#include <cstddef>

namespace penstock::run {

/// The figures of this process, which any thread adds to.
class FiguresFile {
 public:
  /// Makes a file in the folder that kFiguresVariable names. Without one, the figures are kept in memory
  /// alone.
  FiguresFile();
  FiguresFile(const FiguresFile&) = delete;
  FiguresFile& operator=(const FiguresFile&) = delete;

  [[nodiscard]] SizeFigures& of_size(bool to_host, std::size_t bytes) noexcept {
    return figures_->sizes[to_host ? 1 : 0][size_class(bytes)];
  }
  void pass_on(Reason reason, std::size_t copies, std::size_t bytes) noexcept;

 private:
  Figures* figures_;  ///< never unmapped: threads may copy until the process ends
};

void add(Count& count, std::size_t copies, std::size_t bytes) noexcept;
/// Notes a copy that took `nanoseconds`; 0: it was not timed.
void add(Timing& timing, std::size_t bytes, std::uint64_t nanoseconds) noexcept;

}  // namespace penstock::run
