#pragma once

#include "engine.hpp"

#include <penstock/transfer/group_engine.hpp>

#include <nanobind/nanobind.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::python {

/// Sends to several devices, each of which has an engine, over the links of all.
class Group {
 public:
  /// The last owner closes it. It and the caller hold the interpreter's lock. Throws InvalidArgument for
  /// devices that cannot be in one group.
  [[nodiscard]] static std::shared_ptr<Group> open(
      std::vector<std::shared_ptr<Engine>> engines,
      const std::optional<std::filesystem::path>& cache_directory);

  /// Feeds all devices once: a flight for each, in their order. `expand`: one for each.
  [[nodiscard]] std::vector<Flight> send(nb::handle tree, const std::vector<nb::object>& expand);
  /// Sends to the first device, over the links of all.
  [[nodiscard]] Flight relay(nb::handle tree, nb::handle expand);

  /// Throws if it is closed or the process was forked.
  [[nodiscard]] GroupEngine& engine() const;
  /// Of the devices, in their order.
  [[nodiscard]] const std::vector<std::shared_ptr<Engine>>& engines() const noexcept { return engines_; }
  [[nodiscard]] const std::optional<GroupProfile>& measured() const noexcept { return measured_; }
  /// Bytes that each device has pulled over its link so far.
  [[nodiscard]] std::vector<std::size_t> carried() const { return engine().carried(); }

  /// Waits for the transfers and ends the threads. Before the engines are closed.
  void close();

 private:
  Group(std::vector<std::shared_ptr<Engine>> engines,
        const std::optional<std::filesystem::path>& cache_directory);
  /// Enqueues the leaves that all shipments have in common. To the first device alone if there is only one
  /// shipment.
  void enqueue(std::vector<Shipment>& shipments) const;

  const std::vector<std::shared_ptr<Engine>> engines_;
  std::optional<GroupProfile> measured_;
  std::unique_ptr<GroupEngine> group_;
};

void bind_group(nb::module_& module);

}  // namespace penstock::python
