#include "loader/native_group_loader.hpp"

#include "interpreter_lock.hpp"

#include <utility>

namespace penstock::python {
namespace {

GroupLinks links_of(const Group& group) {
  GroupLinks links{.measured = group.measured()};
  for (const auto& engine : group.engines()) links.profiles.push_back(engine->profile());
  return links;
}

/// For all devices, or for the first one over the links of all.
GroupLoader make_group_loader(const Group& group, Dataset dataset, LoaderOptions options, bool relays) {
  group.refuse_closed();
  const DeviceGroup& devices = group.devices();
  GroupLinks links = links_of(group);
  const Unlocked unlocked;
  return relays ? GroupLoader::relay(0, std::move(dataset), devices, std::move(options), std::move(links))
                : GroupLoader(std::move(dataset), devices, std::move(options), std::move(links));
}

}  // namespace

NativeGroupLoader::NativeGroupLoader(const std::shared_ptr<Group>& group, const NativeLoader::Arrays& fields,
                                     LoaderOptions options)
    : NativeGroupLoader(group, group->engines().size(),
                        make_group_loader(*group, make_dataset(fields), std::move(options), false)) {}

NativeGroupLoader::NativeGroupLoader(std::shared_ptr<Group> group, std::size_t receivers, GroupLoader loader)
    : group_(std::move(group)),
      loader_(std::move(loader), {group_->engines().begin(),
                                  group_->engines().begin() + static_cast<std::ptrdiff_t>(receivers)}) {}

NativeRelayLoader::NativeRelayLoader(const std::shared_ptr<Group>& group, const NativeLoader::Arrays& fields,
                                     LoaderOptions options)
    : NativeGroupLoader(group, 1, make_group_loader(*group, make_dataset(fields), std::move(options), true)) {
}

nb::object NativeGroupLoader::next() {
  group_->refuse_closed();
  return loader_.next([&](const auto& leases) {
    nb::list all;
    for (std::size_t i = 0; i < leases.size(); ++i) all.append(make_fields(*group_->engines()[i], leases[i]));
    return all;
  });
}

}  // namespace penstock::python
