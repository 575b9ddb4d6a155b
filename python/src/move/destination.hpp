#pragma once

#include "move/engine.hpp"
#include "move/group.hpp"
#include "move/rank_of_group.hpp"

#include <penstock/transfer/destination.hpp>

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

/// A Destination, with what sends to it: an engine, a group of them, or this process's place in a group of
/// processes. A value.
class EngineDestination {
 public:
  [[nodiscard]] static EngineDestination of_device(std::shared_ptr<Engine> engine);
  /// `relays`: the first device alone receives, over the links of all. Otherwise all do.
  [[nodiscard]] static EngineDestination of_group(const std::shared_ptr<Group>& group, bool relays);
  [[nodiscard]] static EngineDestination of_rank(std::shared_ptr<Engine> engine,
                                                 std::shared_ptr<GroupBoard> board);

  [[nodiscard]] Destination destination() const;
  /// The engines of the devices that receive.
  [[nodiscard]] const std::vector<std::shared_ptr<Engine>>& engines() const noexcept { return engines_; }
  [[nodiscard]] Engine& engine() const noexcept { return *engines_.front(); }
  /// Null: one device, over its own link.
  [[nodiscard]] const std::shared_ptr<Group>& group() const noexcept { return group_; }
  /// Nullopt: no other process takes part.
  [[nodiscard]] const std::optional<RankOfGroup>& rank() const noexcept { return rank_; }
  /// True if there is one result for each device, and not one alone.
  [[nodiscard]] bool is_to_all() const noexcept { return group_ != nullptr && !relays_; }

  /// As Engine::send, to each device that receives. `expand`: one for each. `pin`, `timed`: for one device.
  [[nodiscard]] Flights send(nb::handle tree, const std::vector<nb::object>& expand, bool pin,
                             bool timed = false, const FilledSlot* slot = nullptr) const;
  /// See RankOfGroup::tell. Without other processes, nobody is told.
  void tell(nb::handle error) const;
  void refuse_closed() const;

 private:
  std::vector<std::shared_ptr<Engine>> engines_;
  std::shared_ptr<Group> group_;
  bool relays_ = false;
  std::optional<RankOfGroup> rank_;
};

void bind_destination(nb::module_& module);

}  // namespace penstock::python
