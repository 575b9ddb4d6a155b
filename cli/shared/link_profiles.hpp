#pragma once

#include "cli/shared/environment.hpp"
#include "cli/shared/output.hpp"

#include <penstock/device/device_group.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>

namespace penstock::cli {

/// What a DeviceInfo or a DeviceGroup has.
template <typename Described>
using ProfileOf = std::conditional_t<std::is_same_v<Described, DeviceGroup>, GroupProfile, LinkProfile>;

/// Where link profiles are stored. Throws Error if there is no such directory.
[[nodiscard]] const std::filesystem::path& profile_directory(const Environment& environment);
/// The file of a profile: `file`, or one in the cache. Throws Error if there is neither.
template <typename Described>
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const Described& described,
                                                 const Environment& environment) {
  if (!file.empty()) return file;
  return ProfileOf<Described>::file_for(profile_directory(environment), described);
}
/// The profile in `file`, or nullopt. If there is one that cannot be used, stderr and `ignored` say why.
template <typename Described>
[[nodiscard]] std::optional<ProfileOf<Described>> stored_profile(const std::filesystem::path& file,
                                                                 const Described& described,
                                                                 std::string* ignored = nullptr) {
  std::string why;
  auto profile = ProfileOf<Described>::load(file, described, &why);
  std::error_code error;
  if (!profile && std::filesystem::exists(file, error)) {
    say("penstock: ignored: " + why + "\n");
    if (ignored != nullptr) *ignored = why;
  }
  return profile;
}

/// Throws Error if storing a profile in `file` would replace something other than a regular file, or, if the
/// user `named` the file, other than a profile. A damaged profile may be replaced.
void require_profile_place(const std::filesystem::path& file, bool named);

/// "55.6": bytes per second in GB/s, with three significant digits.
[[nodiscard]] std::string format_rate(double bytes_per_second);
/// "PCIe 5 x16", or "not stated".
[[nodiscard]] std::string format_link(const LinkInfo& link);
/// The same for a device. Says so if it does not have a link.
[[nodiscard]] std::string link_text(const DeviceInfo& device);

}  // namespace penstock::cli
