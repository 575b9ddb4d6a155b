#pragma once

#include <penstock/device/device_group.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// How fast the devices of a group receive, together and from each other, and the settings that suit them.
/// Measured by measure_group and `penstock link --devices`. A value: copy it freely. Rates are bytes per
/// second of large transfers from locked memory, medians, on an idle machine.
struct GroupProfile {
  struct Member {
    std::string device_name;
    std::string device_uuid;  ///< the device's spec if it has no uuid
    double link = 0;          ///< over its own link, alone
    double relayed = 0;       ///< over the links of all members that reach it
    /// From it to each member, in the group's order, alone. 0: itself, and members that it does not reach.
    std::vector<double> peers = {};
  };

  std::vector<Member> members;  ///< in the group's order
  double links_at_once = 0;     ///< of all links together, while each member pulls for itself
  double replicated = 0;        ///< that every member receives if each pulls all for itself
  double fed_once = 0;          ///< that every member receives by GroupEngine::feed_once

  /// The engine's settings.
  std::size_t chunk_bytes = std::size_t{4} << 20;
  unsigned slots = 4;

  std::string driver;
  std::string processor;
  std::string measured_at;  ///< UTC, ISO 8601

  /// What a member's link brings at least while all links are used: those that share a wire share its rate.
  [[nodiscard]] double link_beside_others(std::size_t member) const;
  /// False if the member receives as fast over its own link alone. Its neighbours' links are left free then.
  [[nodiscard]] bool relay_pays(std::size_t receiver) const;
  /// False if each member receives as fast by pulling all for itself.
  [[nodiscard]] bool feeding_once_pays() const noexcept;

  /// A profile of these devices, driver and host, without rates.
  [[nodiscard]] static GroupProfile named_after(const DeviceGroup& group);

  /// Reads the profile of a group, in its order. Gives nullopt, and the reason in `why`, if the file is
  /// missing or damaged, was written by another version, or describes other devices, another driver or host.
  /// Never throws for a bad file.
  [[nodiscard]] static std::optional<GroupProfile> load(const std::filesystem::path& file,
                                                        const DeviceGroup& group, std::string* why = nullptr);
  /// As LinkProfile::save.
  void save(const std::filesystem::path& file) const;

  /// The profile as JSON text, and back. parse throws InvalidArgument that says what is wrong.
  [[nodiscard]] std::string to_json() const;
  [[nodiscard]] static GroupProfile parse(const std::string& json);

  /// The file below a user's cache directory for the profile of these devices, in any order.
  [[nodiscard]] static std::filesystem::path file_for(const std::filesystem::path& cache_directory,
                                                      const DeviceGroup& group);
};

}  // namespace penstock
