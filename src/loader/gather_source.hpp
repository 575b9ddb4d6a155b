#pragma once

#include "loader/batch_source.hpp"
#include "loader/device_ring.hpp"
#include "loader/locked_sources.hpp"
#include "loader/producer.hpp"
#include "loader/resident.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {

/// Gathers the samples of a dataset, for one device over its own link: see Producer. What is resident is
/// moved there before the first batch.
class GatherSource : public BatchSource {
 public:
  /// Its steps are those before the first batch. `options` outlive it.
  GatherSource(Dataset dataset, Device device, const LoaderOptions& options, const BatchOrder& order);

  [[nodiscard]] std::vector<std::shared_ptr<DeviceRing>> rings() const override { return {ring_}; }
  [[nodiscard]] const Dataset& dataset() const noexcept override { return dataset_; }
  [[nodiscard]] const FeedPlan& plan() const noexcept override { return plan_; }
  [[nodiscard]] double link_ceiling() const noexcept override;

  [[nodiscard]] bool prepare(Account& account, FunctionRef<bool()> stopped) override;
  [[nodiscard]] bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot,
                          PublishedItem& item) override;
  [[nodiscard]] bool may_still_write() noexcept override { return std::exchange(may_be_written_, false); }

  /// The reads of batches that were begun end with the epoch.
  void go_to(const Sampler& /*place*/) override { producer_->drop_begun(); }
  void leave() override { producer_->drop_begun(); }
  void close(std::uint64_t handed_out) override;
  void synchronize() override { producer_->synchronize(); }

 private:
  void make_decoders(FeedFacts& facts);
  void make_decoder(std::size_t f, FeedFacts& facts);
  void choose_decoder(std::size_t f, FieldFacts& facts, std::size_t batch);
  void make_plan(FeedFacts& facts);
  void plan_without_gaps(FeedFacts& facts);
  void copy_apart_from(const std::vector<std::size_t>& columns, FeedFacts& facts);
  void reserve_memory(FeedFacts& facts);
  [[nodiscard]] unsigned threads_that_gather() const;

  const LoaderOptions& options_;
  const Device device_;
  const LinkProfile profile_;
  const std::shared_ptr<HostWorkers> workers_;
  Dataset dataset_;
  JpegDecoders decoders_;
  FeedPlan plan_;
  std::optional<Dataset> travelling_;  ///< the dataset with its rows, if the plan has any
  LockedSources sources_;
  std::shared_ptr<Pool> memory_;
  std::unique_ptr<Resident> resident_;
  std::shared_ptr<DeviceRing> ring_;
  std::unique_ptr<Producer> producer_;
  bool is_resident_ = false;
  bool may_be_written_ = false;
};

}  // namespace penstock
