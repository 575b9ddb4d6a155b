#pragma once

#include <penstock/device/device_group.hpp>
#include <penstock/memory/process_board.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

/// The measurements of a group's links, if there are any.
struct GroupLinks {
  /// The profile of each member's link, in the group's order. Empty: no link was measured alone.
  std::vector<LinkProfile> profiles = {};
  /// The measured profile of the group. It gives each member a part of the bytes in proportion to its link,
  /// and says whether feeding once pays. Without one, the parts are equal.
  std::optional<GroupProfile> measured = std::nullopt;
};

/// Where data goes, and over which links. A value: copies share the devices, and keep them open.
class Destination {
 public:
  enum class Kind : std::uint8_t {
    device,   ///< one device, over its own link
    group,    ///< all devices of a group: each gets the same, and each byte crosses one link
    relayed,  ///< one device of a group, over the links of all
    rank,     ///< this process's device in a group of processes, each of which gets the same
  };

  Destination(Device device);  // NOLINT(google-explicit-constructor): most destinations are one device
  /// Each byte crosses one link: every member pulls a part over its own link, and copies it on to the others.
  /// Members that do not reach each other pull for themselves. Throws InvalidArgument if `links` are those of
  /// another number of devices.
  Destination(DeviceGroup group, GroupLinks links = {});  // NOLINT(google-explicit-constructor)
  /// The `receiver` alone, over the links of all members that reach it: the others pull parts into buffers of
  /// their own, and push them on. They give way: if others use such a member's link, or its way to the
  /// receiver, it carries only a probe now and then, until it finds the wires free again. If no member
  /// reaches the receiver, or `links.measured` says that relays do not pay, its own link carries all. Throws
  /// InvalidArgument if there is no such member; otherwise as the constructor.
  [[nodiscard]] static Destination relayed(DeviceGroup group, std::size_t receiver = 0,
                                           GroupLinks links = {});
  /// One device in each of several processes of a host. Each byte crosses one link: every process brings a
  /// part over its own link, and copies those of the others from their devices' memory.
  [[nodiscard]] static Destination rank(Device device, ProcessBoardOptions processes);

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  /// The devices of this process that get the data, in their order: at least one.
  [[nodiscard]] std::span<const Device> receivers() const noexcept { return receivers_; }
  /// The devices whose links carry it, with the receivers among them. Only of `group` and `relayed`.
  [[nodiscard]] const DeviceGroup& group() const noexcept { return *group_; }
  [[nodiscard]] const GroupLinks& links() const noexcept { return links_; }
  /// The receiver's place in the group. Only of `relayed`.
  [[nodiscard]] std::size_t receiver() const noexcept { return receiver_; }
  /// Only of `rank`.
  [[nodiscard]] const ProcessBoardOptions& processes() const noexcept { return *processes_; }

 private:
  Kind kind_ = Kind::device;
  std::vector<Device> receivers_;
  std::optional<DeviceGroup> group_;
  GroupLinks links_;
  std::size_t receiver_ = 0;
  std::optional<ProcessBoardOptions> processes_;
};

}  // namespace penstock
