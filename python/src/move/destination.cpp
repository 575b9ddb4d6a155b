#include "move/destination.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

namespace penstock::python {

EngineDestination EngineDestination::of_device(std::shared_ptr<Engine> engine) {
  EngineDestination one;
  one.engines_.push_back(std::move(engine));
  return one;
}

EngineDestination EngineDestination::of_group(const std::shared_ptr<Group>& group, bool relays) {
  EngineDestination several;
  several.group_ = group;
  several.relays_ = relays;
  several.engines_ = group->engines();
  if (relays) several.engines_.resize(1);
  return several;
}

EngineDestination EngineDestination::of_rank(std::shared_ptr<Engine> engine,
                                             std::shared_ptr<GroupBoard> board) {
  EngineDestination one = of_device(engine);
  one.rank_ = RankOfGroup{std::move(engine), std::move(board)};
  return one;
}

Destination EngineDestination::destination() const {
  if (rank_) return Destination::rank(engine().device(), rank_->group->options());
  if (!group_) return engine().device();
  GroupLinks links{.measured = group_->measured()};
  for (const auto& member : group_->engines()) links.profiles.push_back(member->profile());
  return relays_ ? Destination::relayed(group_->devices(), 0, std::move(links))
                 : Destination(group_->devices(), std::move(links));
}

Flights EngineDestination::send(nb::handle tree, const std::vector<nb::object>& expand, bool pin, bool timed,
                                const FilledSlot* slot) const {
  if (group_) {
    auto [flights, link_bytes] = group_->send(tree, expand, slot);
    return {std::move(flights), link_bytes, is_to_all()};
  }
  std::vector<Flight> one;
  one.push_back(rank_ ? rank_->send(tree, expand.front())
                      : engine().send(tree, expand.front(), pin, timed, slot));
  const std::size_t link_bytes = one.front().bytes();
  return {std::move(one), link_bytes, false};
}

void EngineDestination::tell(nb::handle error) const {
  if (rank_) rank_->tell(message_of(error));
}

void EngineDestination::refuse_closed() const { group_ ? group_->refuse_closed() : engine().refuse_closed(); }

void bind_destination(nb::module_& module) {
  nb::class_<GroupBoard>(module, "GroupBoard", "The processes of a group; use penstock.ProcessGroup.")
      .def(nb::init<std::string, std::size_t, std::size_t, double>(), nb::kw_only(), nb::arg("key"),
           nb::arg("rank"), nb::arg("processes"), nb::arg("timeout_seconds"));
  nb::class_<Flights>(module, "Flights", "A nest on its way to one device, or to each of several.")
      .def("land", &Flights::land,
           "The nest with its arrays on the device, or a list of it for several; callable once.")
      .def("release_sources", &Flights::release_sources,
           "Blocks until the arrays that were sent are no longer read.");
  nb::class_<EngineDestination>(module, "Destination", "Devices, and the links over which they are fed.")
      .def_static("device", &EngineDestination::of_device, nb::arg("engine"))
      .def_static("group", &EngineDestination::of_group, nb::arg("group"), nb::arg("relays"),
                  "All devices of a group; if it `relays`, the first alone, over the links of all.")
      .def_static("rank", &EngineDestination::of_rank, nb::arg("engine"), nb::arg("board"),
                  "This process's device, in a group of processes.")
      .def(
          "send",
          [](const EngineDestination& self, nb::handle tree, const std::vector<nb::object>& expand,
             bool pin) { return self.send(tree, expand, pin); },
          nb::arg("tree").none(), nb::arg("expand"), nb::arg("pin") = false,
          "Sends a nest to each device that receives. With other processes, they send an equal nest, and it "
          "blocks until it is there.")
      .def("tell", &EngineDestination::tell, nb::arg("error"),
           "Has the other processes fail, in place of sending; without any, does nothing.");
}

}  // namespace penstock::python
