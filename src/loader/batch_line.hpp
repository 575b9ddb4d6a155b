#pragma once

#include "loader/batch_source.hpp"
#include "loader/device_ring.hpp"
#include "loader/production_thread.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/transfer/account.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A loader's batches, from their order to the leases:
///
///   sampler, or the drawn batches -> come_to -> a slot of each ring -> fill -> published    on its thread
///   take from each ring -> the consumer's stream waits -> lease                             in next()
///   lease ends -> done events -> the slot is free                                           in DeviceBatch
///
/// If a batch sampler chooses the samples, its batches are drawn in next(). What come_to and fill do is the
/// source's. Loader closes the line, and shares it with running calls of next().
class BatchLine {
 public:
  /// `make_source`: called once. Throws what it throws, and InvalidArgument if the options do not fit.
  BatchLine(Destination destination, LoaderOptions options, const Dataset& dataset,
            FunctionRef<std::unique_ptr<BatchSource>(const Destination&, const LoaderOptions&, BatchOrder&)>
                make_source);
  BatchLine(const BatchLine&) = delete;
  BatchLine& operator=(const BatchLine&) = delete;

  /// `streams`: one of each receiver. `while_waiting`: see Loader::next; may be null.
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams,
                                                             const FunctionRef<void()>* while_waiting);
  /// For one receiver.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>* while_waiting);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void leave_epoch();
  void synchronize();
  [[nodiscard]] SamplerState state() const;
  /// Of the epoch that state() is in.
  [[nodiscard]] Sampler whole_epoch() const;
  [[nodiscard]] std::uint64_t batches_left() const;
  void close();

  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  [[nodiscard]] FeedStatistics member_stats(std::size_t member) const;
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  [[nodiscard]] const BatchSource& source() const noexcept { return *source_; }
  [[nodiscard]] const Destination& destination() const noexcept { return destination_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }
  /// True in a child of fork, which may not touch this object.
  [[nodiscard]] bool is_forked() const noexcept { return process_ != fork_generation(); }

 private:
  class Request;
  /// A batch or an end that next() has of one receiver, and not yet of all.
  struct Taken {
    PublishedItem item;
    std::optional<DeviceBatch> batch;
  };

  void run();
  [[nodiscard]] bool make_next(FunctionRef<bool()> stopped);
  [[nodiscard]] std::optional<SampleRun> choose();
  [[nodiscard]] std::optional<BatchSamples> later(std::size_t turns) const;
  [[nodiscard]] bool make_batch(const Turn& turn);
  [[nodiscard]] bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot, PublishedItem& item);
  [[nodiscard]] PublishedItem next_item() const;
  void publish_end();
  void publish_failure(const std::exception_ptr& error);
  void publish_to_all(const PublishedItem& item);
  void end_waits();

  /// See BatchSampler::may_tear.
  [[nodiscard]] bool is_torn(const PublishedItem& item) const;
  void take_all(std::span<const Stream> streams, const FunctionRef<void()>* while_waiting);
  void drop(std::optional<Taken>& taken) noexcept;
  [[nodiscard]] bool drop_outdated() noexcept;

  template <typename Change>
  void go_to(Change&& change);
  void drop_batches(const SamplerState& position);
  void refuse_fork() const;
  void refuse_streams(std::size_t count) const;
  [[nodiscard]] FeedStatistics complete(FeedStatistics statistics) const;

  const std::uint64_t process_ = fork_generation();
  const Destination destination_;
  const LoaderOptions options_;
  BatchOrder order_;
  const std::unique_ptr<BatchSource> source_;
  const std::vector<std::shared_ptr<DeviceRing>> rings_;  ///< of the receivers
  const std::size_t delivered_sample_bytes_;
  const std::unique_ptr<Account> account_;  ///< on the first receiver's device

  Sampler sampler_;                    ///< only for the thread; with a batch sampler, only its epoch counts
  std::uint64_t index_ = 0;            ///< of the next batch in its epoch
  std::uint64_t turn_ = 0;             ///< see Turn::number
  std::vector<std::uint64_t> chosen_;  ///< by the batch sampler, for this turn

  std::mutex next_mutex_;                     ///< held in next() for several receivers
  std::vector<std::optional<Taken>> taken_;   ///< of each receiver; guarded by it
  std::atomic<std::uint64_t> handed_out_{0};  ///< as turn_, of next()
  std::atomic<bool> between_epochs_{false};   ///< with a batch sampler: an end was handed out last

  mutable std::mutex position_mutex_;  ///< guards the two below
  SamplerState position_;              ///< of several receivers
  std::uint64_t generation_ = 0;       ///< changes with each go_to, and with the thread not at work

  std::mutex control_mutex_;  ///< held by start_epoch, restore, leave_epoch and close
  ProductionThread thread_;
  bool closed_ = false;
};

}  // namespace penstock
