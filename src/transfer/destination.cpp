#include <penstock/core/error.hpp>
#include <penstock/transfer/destination.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

Destination::Destination(Device device) : receivers_{std::move(device)} {}

Destination::Destination(DeviceGroup group, GroupLinks links)
    : kind_(Kind::group), group_(std::move(group)), links_(std::move(links)) {
  const std::size_t count = group_->size();
  for (std::size_t i = 0; i < count; ++i) receivers_.push_back((*group_)[i]);
  if (!links_.profiles.empty() && links_.profiles.size() != count) {
    throw InvalidArgument(fmt::format("{} profiles were given for a group of {}; give one for each or none",
                                      links_.profiles.size(), count));
  }
  if (links_.measured && links_.measured->members.size() != count) {
    throw InvalidArgument(
        fmt::format("the measured profile has {} devices, and the group {}; measure this one",
                    links_.measured->members.size(), count));
  }
}

Destination Destination::relayed(DeviceGroup group, std::size_t receiver, GroupLinks links) {
  Destination all(std::move(group), std::move(links));
  if (receiver >= all.group().size()) {
    throw InvalidArgument(
        fmt::format("member {} is not in a group of {}; members count from 0", receiver, all.group().size()));
  }
  all.kind_ = Kind::relayed;
  all.receivers_ = {all.group()[receiver]};
  all.receiver_ = receiver;
  return all;
}

Destination Destination::rank(Device device, ProcessBoardOptions processes) {
  Destination destination(std::move(device));
  destination.kind_ = Kind::rank;
  destination.processes_ = std::move(processes);
  return destination;
}

}  // namespace penstock
