#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace penstock {

/// Gives a timeline's frames names of their own for each of their callers. So a frame costs a number wherever
/// it is, and tells its whole stack.
class FrameNames {
 public:
  /// More frames than these have no callers, nor have those whose names would take more bytes together.
  static constexpr std::size_t kMost = std::size_t{1} << 16;
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  /// The timeline must live as long.
  explicit FrameNames(Timeline& timeline) : timeline_(timeline) {}

  /// The frame with the text of `name` that the frame `caller` calls. kNoName: nobody is known to, and it is
  /// `name` itself.
  [[nodiscard]] std::uint32_t called_by(std::uint32_t name, std::uint32_t caller);

 private:
  Timeline& timeline_;
  std::unordered_map<std::uint64_t, std::uint32_t> frames_;  ///< by the name and the caller
  std::size_t room_ = kMostBytes;
};

inline constexpr std::size_t kMostStackFrames = 64;

/// The texts of a frame and of those that called it, the innermost first, at most 64.
[[nodiscard]] std::vector<std::string> stack_of(const Timeline& timeline, std::uint32_t frame);

}  // namespace penstock
