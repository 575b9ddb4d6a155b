#pragma once

#include "move/destination.hpp"
#include "move/engine.hpp"

#include <penstock/transfer/account.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// The account of one feed. Each of its iterations adds to it. The interpreter's lock is held in all calls.
class FeedAccount {
 public:
  FeedAccount(std::shared_ptr<Engine> engine, std::size_t prefetch_depth);

  /// Does not block. Throws DeviceError in a forked process, and if the device's events cannot be read.
  [[nodiscard]] FeedStatistics statistics();
  [[nodiscard]] std::vector<BatchTimes> timeline();
  /// From here on the stages of the wrapped loader are not timed. Empty: they are.
  void no_stages(std::string why) { host_.stages_unknown = std::move(why); }
  /// From here on it has so many workers. See FeedStatistics.
  void of_workers(unsigned count, bool starts_workers);
  /// Batches that were handed out.
  [[nodiscard]] std::uint64_t batches() const noexcept { return host_.batches; }

 private:
  friend class FeedIteration;

  const std::shared_ptr<Engine> engine_;
  Account account_;
  /// The times and counts of the thread that iterates.
  FeedStatistics host_;
  // Of the batches that were loaded while stages were timed: those whose stages are known, and the others.
  std::uint64_t staged_ = 0;
  std::uint64_t unstaged_ = 0;
  std::uint64_t epochs_ = 0;
};

/// One iteration of a feed. Its thread says what it does next. The interpreter's lock is held in all calls.
class FeedIteration {
 public:
  explicit FeedIteration(std::shared_ptr<FeedAccount> feed) : feed_(std::move(feed)) {}

  /// The consumer asks for a batch. `ready`: batches that were sent and not handed out. Throws DeviceError;
  /// the batch may then be asked for again.
  void ask(std::size_t ready);
  /// The wrapped loader is asked for its iterator or a batch, and has answered.
  void load();
  void loaded();
  /// The seconds of the stages of the batch that was loaded, if they are known: see FeedStatistics.
  void staged(double fetch, double collate, double write, double receive, double pin);
  /// They are not known.
  void unstaged();
  /// The seconds in which batches pinned themselves while the last one was sent.
  void pinned(double seconds) { feed_->host_.send_pin_seconds += seconds; }
  /// Sends the loaded batch, as EngineDestination::send does. The first device has the account.
  [[nodiscard]] Flights send(const EngineDestination& destination, nb::handle tree,
                             const std::vector<nb::object>& expand, bool pin, const FilledSlot* slot);
  /// Hands out the batch that was asked for, as Flights::land does.
  [[nodiscard]] nb::object land(Flights& flights);
  /// The consumer goes on, with a batch or without one. `over`: it will not ask again.
  void leave(bool over);

 private:
  [[nodiscard]] double now() const noexcept { return feed_->account_.now(); }
  /// PyTorch's current stream, if batches are used on it.
  [[nodiscard]] std::optional<StreamHandle> current_stream() const;

  const std::shared_ptr<FeedAccount> feed_;
  std::optional<std::uint64_t> epoch_;
  std::uint64_t batches_ = 0;  ///< of this iteration
  std::optional<Stream> stream_;
  std::optional<Account::Request> request_;
  bool has_sent_ = false;
  double part_begin_ = 0;  ///< when the thread's current part began
  std::optional<double> left_;
  std::size_t ready_ = 0;
  BatchTimes times_;  ///< times of the current request
};

void bind_feed_account(nb::module_& module);
void bind_statistics(nb::module_& module);

}  // namespace penstock::python
