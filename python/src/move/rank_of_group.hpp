#pragma once

#include "move/engine.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/memory/process_board.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace penstock::python {

/// The message of a Python exception, or the name of its type if it has none. What is not UTF-8 is escaped.
[[nodiscard]] std::string message_of(nb::handle error);

/// The board of a group, where its processes meet when they first transfer something together. If one of them
/// fails or is killed, the others learn it there. After an error they meet anew. Called without the
/// interpreter's lock.
class GroupBoard {
 public:
  GroupBoard(std::string key, std::size_t rank, std::size_t processes, double timeout_seconds)
      : key_(std::move(key)), rank_(rank), processes_(processes), timeout_seconds_(timeout_seconds) {}

  /// Of this group. Signals are heard while this process waits.
  [[nodiscard]] ProcessBoardOptions options() const;
  /// Calls `use(board)`, and `look` while it waits. One thread at a time. Throws Unsupported in a forked
  /// child.
  void use(const std::function<void(ProcessBoard&)>& use, std::function<void()> look = {});

 private:
  const std::string key_;
  const std::size_t rank_;
  const std::size_t processes_;
  const double timeout_seconds_;
  const std::uint64_t generation_ = fork_generation();
  std::mutex mutex_;
  std::function<void()> look_;
  std::unique_ptr<ProcessBoard> board_;
};

/// This process's place in a group of processes, and its device.
struct RankOfGroup {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<GroupBoard> group;

  /// The measured one of the device, if there is one.
  [[nodiscard]] std::optional<LinkProfile> profile() const;

  /// Tells the others, in place of sending, why this process cannot: they fail, too. Waits for them.
  void tell(const std::string& error) const;
  /// As Engine::send, together with the other processes, which send an equal nest: each byte crosses one
  /// link. Blocks the host until the arrays are there. If the nest cannot be sent, the others learn it.
  [[nodiscard]] Flight send(nb::handle tree, nb::handle expand) const;
};

}  // namespace penstock::python
