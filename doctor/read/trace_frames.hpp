#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace penstock {

/// A frame of PyTorch's profiler, such as "train.py(12): main".
struct TraceFrame {
  bool of_user = false;    ///< neither of an installed package nor of Python
  std::string_view place;  ///< the end of its name, as places have it; empty: no place may name it
};
/// The profiler cuts off the folders in which Python looks for modules. So an installed package is known by
/// its name, and others count as the program's own.
[[nodiscard]] TraceFrame trace_frame(std::string_view name);

/// Keeps frames of packages as the places of recordings do: if no frame of the program is around them, or if
/// one function of the program makes all calls, with its name before theirs. Gives each frame its callers
/// among the program's own. `timeline` is sorted.
void place_frames(Timeline& timeline, const std::set<std::uint32_t>& of_packages);

/// "main.py(5): <module>, in trainer/loop.py(88): step"
[[nodiscard]] std::string place_in_package(std::string_view own, std::string_view in_package);

}  // namespace penstock
