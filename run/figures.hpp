#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

/// What a process did with the copies of its program, as it lies in a file that the process maps: a killed
/// process leaves it as it is. `penstock run` reads the files of all processes.
namespace penstock::run {

/// The folder for the files of figures, in the environment of the program. Unset: no figures are kept.
inline constexpr char kFiguresVariable[] = "PENSTOCK_RUN_FIGURES";

/// Why a copy was passed on to the driver.
enum class Reason : std::uint8_t {
  small,         ///< less than kSmallestCopy
  first,         ///< the first copies of a size class, which show what the driver gives
  slower,        ///< of a size class in which the driver is as fast
  other_memory,  ///< not between pageable memory and memory of the current device alone
  form,          ///< not one run of bytes; or of a batch that could not be taken as a whole
  context,       ///< of a context or stream that is not of the device's primary context
  capture,       ///< on a stream that is captured
  busy,          ///< while copies of other streams use all pinned memory
  ending,        ///< as the program ends, in a forked child, or from within another copy
  refused,       ///< the engine could not be opened, or a copy has failed
};
inline constexpr std::size_t kReasons = 10;

inline constexpr std::size_t kSmallestCopy = std::size_t{1} << 20;
/// From 1 MiB on, each has four times the size of the one before; the last has no end.
inline constexpr std::size_t kSizeClasses = 6;

[[nodiscard]] constexpr std::size_t size_class(std::size_t bytes) noexcept {
  const std::size_t doublings = std::bit_width(bytes / kSmallestCopy) - 1;
  return doublings / 2 < kSizeClasses ? doublings / 2 : kSizeClasses - 1;
}

struct Count {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

/// Copies of one size class by the driver, or by penstock. Those that found other work on their stream are
/// not timed.
struct Timing {
  Count all;
  Count timed;
  std::uint64_t nanoseconds = 0;  ///< of the timed calls, until they returned
  std::uint64_t best = 0;         ///< bytes a second of the fastest one
};

struct SizeFigures {
  Timing driver;
  Timing taken;
};

struct Figures {
  static constexpr std::uint64_t kFormat = 0x70656e72756e0002;

  std::uint64_t format = kFormat;
  SizeFigures sizes[2][kSizeClasses];  ///< to the device, to the host
  Count passed_on[kReasons];
};

}  // namespace penstock::run
