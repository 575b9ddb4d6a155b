#pragma once

#include "loader/batch_parts.hpp"
#include "loader/device_ring.hpp"
#include "loader/loader_state.hpp"
#include "loader/peer_parts.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/loader/rank_loader.hpp>
#include <penstock/memory/process_board.hpp>
#include <penstock/transfer/account.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

/// The batches of one process of a group, from its parts to the leases:
///
///   its part, from a Loader -> a place that the others can read -> offered
///   the parts that all offer -> a slot -> arrived -> published              on a thread of the loader
///   take from the ring -> a lease                                           in next()
///
/// The thread waits on the host at each arrow: a batch is published when it is all there and the processes
/// that had its parts still live. Meanwhile the Loader brings the next parts over the link.
///
/// If a batch sampler chooses the samples, its batches are drawn in next(). With each part a process offers a
/// number that says which samples the whole batch has, and with none at an epoch's end. So processes whose
/// samplers differ notice it before they take a part.
///
/// If the processes cannot read each other's memory, each has a loader of whole batches. That loader's thread
/// makes the same offers, for each batch before it gathers it, and waits for those of the others. A process
/// that is alone in its group has such a loader, too, and offers nothing.
class RankLoaderState {
 public:
  /// `only_once`: if feeds_once() is false, there is no loader. Only feeds_once, refusal and close may be
  /// called then.
  RankLoaderState(Dataset dataset, Device device, ProcessBoardOptions group, LoaderOptions options,
                  bool only_once);
  ~RankLoaderState();
  RankLoaderState(const RankLoaderState&) = delete;
  RankLoaderState& operator=(const RankLoaderState&) = delete;

  /// `while_waiting` may be null.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>* while_waiting);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void leave_epoch();
  [[nodiscard]] SamplerState state() const;
  void close();

  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] std::vector<BatchTimes> timeline() const;
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] bool feeds_once() const noexcept { return refusal_.empty(); }
  /// Why it does not feed once; empty if it does.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

  [[nodiscard]] const Sampler& first_sampler() const noexcept { return first_sampler_; }
  [[nodiscard]] const Dataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool is_forked() const noexcept { return generation_of_process_ != fork_generation(); }

 private:
  void meet();
  [[nodiscard]] std::string describe_part() const;
  void add_loader();
  void add_loader_of_parts();
  [[nodiscard]] RankDuties duties();
  [[nodiscard]] std::optional<DeviceBatch> next_of_parts(const Stream& stream,
                                                         const FunctionRef<void()>& while_waiting);
  [[nodiscard]] std::optional<DeviceBatch> next_whole(const Stream& stream,
                                                      const FunctionRef<void()>& while_waiting);
  void close_whole();
  void refuse_late(PeerParts::Clock::time_point since) const;
  void run();
  [[nodiscard]] SampleRun next_run();
  [[nodiscard]] bool make_batch(const SampleRun& run);
  [[nodiscard]] bool make_end(PublishedItem& end);
  [[nodiscard]] bool offer();
  [[nodiscard]] bool agree(const DeviceSlot& slot, FunctionRef<bool()> stopped);
  void meet_at(const SamplerState& place);
  void complain(const std::exception_ptr& error) noexcept;
  [[nodiscard]] bool fill(DeviceSlot& slot, PublishedItem& item);
  [[nodiscard]] bool wait_for(const Event& event) const;
  [[nodiscard]] bool drain() const noexcept;
  void publish(const PublishedItem& item);
  void begin_production();
  void end_production();
  template <typename Change>
  void go_to(Change&& change);
  void refuse_fork() const;

  const std::uint64_t generation_of_process_ = fork_generation();
  const LoaderOptions options_;
  const Device device_;
  const Dataset dataset_;
  const Sampler first_sampler_;
  const FeedPlan plan_;  ///< of a whole batch: how it lies in a slot
  ProcessBoard board_;
  const std::size_t rank_;
  std::optional<BatchSplit> split_;      ///< of each batch; nullopt if the group is one process
  std::shared_ptr<BatchShares> shares_;  ///< the same; only for the loader's thread
  std::unique_ptr<PeerParts> parts_;     ///< null if the group is one process
  std::string refusal_;
  /// Batches since the processes were last at one place; with a batch sampler, also ends of epochs. Only for
  /// the thread that makes batches.
  std::uint64_t turn_ = 0;
  std::atomic<bool> between_epochs_{false};  ///< with a batch sampler: an end was handed out last
  std::unique_ptr<LoaderState> whole_;       ///< null if it feeds once

  // The rest is for feeding once.
  std::unique_ptr<DrawnBatches> drawn_;  ///< of the batch sampler; null without one
  std::shared_ptr<SharedDraws> draws_;   ///< the same, for the loader's thread
  std::shared_ptr<PartSampler> sampler_of_parts_;
  std::optional<Loader> loader_;  ///< of the parts
  std::unique_ptr<Account> account_;
  std::shared_ptr<DeviceRing> ring_;
  std::optional<Stream> put_;     ///< copies this process's part to its place
  std::optional<Stream> arrive_;  ///< copies all parts to a slot
  std::optional<Event> placed_;

  Sampler sampler_;  ///< only for the loader's thread, as the next one
  std::uint64_t index_ = 0;

  std::atomic<std::uint64_t> handed_out_{0};  ///< as turn_, of next()
  std::atomic<bool> stopped_{false};

  std::mutex control_mutex_;  ///< held by start_epoch, restore and close
  std::thread thread_;
  bool closed_ = false;
};

}  // namespace penstock
