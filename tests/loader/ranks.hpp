#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

namespace penstock::testing {

/// The devices of the ranks of a group, one for each, and a name for them.
struct Devices {
  std::string name;
  std::vector<std::string> specs;
};
inline void PrintTo(const Devices& devices, std::ostream* out) { *out << devices.name; }

/// Writes a text into what is sent to a process. Its end is cut if there is no room.
template <std::size_t N>
void put(std::array<char, N>& to, const std::string& text) {
  std::strncpy(to.data(), text.c_str(), N - 1);
}

}  // namespace penstock::testing
