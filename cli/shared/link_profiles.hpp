#pragma once

#include "cli/shared/environment.hpp"

#include <penstock/device/device_group.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace penstock::cli {

/// The file of the profile of `device`: `file`, or one in the cache. Throws Error if there is neither.
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const DeviceInfo& device,
                                                 const Environment& environment);
/// The profile in `file`, or nullopt. If there is one that cannot be used, stderr and `ignored` say why.
[[nodiscard]] std::optional<LinkProfile> stored_profile(const std::filesystem::path& file,
                                                        const DeviceInfo& device,
                                                        std::string* ignored = nullptr);

/// The same two for a group of devices.
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const DeviceGroup& group,
                                                 const Environment& environment);
[[nodiscard]] std::optional<GroupProfile> stored_profile(const std::filesystem::path& file,
                                                         const DeviceGroup& group);

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
