#pragma once

#include <penstock/device/device.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
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

/// A measured profile of a link with this ceiling; nullopt for 0.
inline std::optional<LinkProfile> profile_of(const Device& device, double bytes_per_second) {
  if (bytes_per_second == 0) return std::nullopt;
  LinkProfile profile = LinkProfile::defaults(device.info());
  profile.measured = true;
  profile.curves[LinkProfile::Curve::pinned_h2d] = {{1 << 20, (1 << 20) / bytes_per_second}};
  return profile;
}

/// Writes a text into what is sent to a process. Its end is cut if there is no room.
template <std::size_t N>
void put(std::array<char, N>& to, const std::string& text) {
  std::strncpy(to.data(), text.c_str(), N - 1);
}

}  // namespace penstock::testing
