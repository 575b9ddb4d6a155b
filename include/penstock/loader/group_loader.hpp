#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device_group.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The measurements of a group's links, if there are any.
struct GroupLinks {
  /// The profile of each member's link, in the group's order. Empty: LoaderOptions::profile for all.
  std::vector<LinkProfile> profiles = {};
  /// The measured profile of the group. It gives each member a part of the batch in proportion to its link,
  /// and says whether feeding once pays. Without one, the parts are equal.
  std::optional<GroupProfile> measured = std::nullopt;
};

/// Feeds a dataset to all devices of a group: each gets the same batches, in the order of a Loader on one
/// device with these options. Each byte crosses one link: every member pulls its part of a batch over its own
/// link, and copies it on to the others. Members that do not reach each other pull for themselves.
///
/// Each member has a Loader of its own for its parts, with up to two of them ahead, and a ring of slots for
/// whole batches. Thread-safe: several threads may ask for batches, one at a time, and each gets different
/// ones.
class GroupLoader {
 public:
  /// Allocates as Loader does, on each member: `options.device_budget_bytes` is that of each. Throws
  /// InvalidArgument if the options do not fit; also for data that may change without a batch sampler, since
  /// the next epoch is read ahead then. Throws OutOfMemory, DeviceError.
  GroupLoader(Dataset dataset, DeviceGroup group, LoaderOptions options = {}, GroupLinks links = {});
  /// Feeds one member, the `receiver`, over the links of all that reach it: the others pull parts of each
  /// batch into buffers of their own, and push them on. They give way: if others use such a member's link, or
  /// its way to the receiver, its parts take longer, and those over the receiver's own link do not. Then it
  /// gets only a probe now and then, until it finds the wires free again. Batches whose parts are smaller
  /// than 1 MiB do not tell. A member without memory for its parts sits out. If no member reaches the
  /// receiver, or `links.measured` says that relays do not pay, its own link carries all. next() takes and
  /// gives one stream and one batch: the receiver's.
  ///
  /// Otherwise as the constructor. Also throws InvalidArgument for a residency.
  [[nodiscard]] static GroupLoader relay(std::size_t receiver, Dataset dataset, DeviceGroup group,
                                         LoaderOptions options = {}, GroupLinks links = {});
  /// As Loader.
  ~GroupLoader();
  GroupLoader(GroupLoader&&) noexcept;
  GroupLoader& operator=(GroupLoader&&) noexcept;

  /// The next batch on each member, in the group's order. Work enqueued on a member's stream after this call
  /// finds its batch ready. Each lease ends by itself. If one member fails, all fail. The ring is full if
  /// that of one member is. Otherwise as Loader::next. `streams`: one of each member that receives. If this
  /// throws, they outlive the loader, or the batch that a later call gives out.
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams);
  /// As Loader::next. `while_waiting` may not ask for a batch.
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams,
                                                             FunctionRef<void()> while_waiting);

  /// As Loader.
  void start_epoch(std::uint64_t epoch);
  void synchronize();
  /// As Loader. A state may be restored in a Loader, and a Loader's here.
  [[nodiscard]] SamplerState state() const;
  void restore(const SamplerState& state);
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t batches_left() const;

  /// As Loader::stats, of the group: the waits of the first member's consumer, and the bytes of all links.
  /// A transfer lasts from when the batch's parts are copied to the first member's slot until all are there.
  [[nodiscard]] FeedStatistics stats() const;
  /// The account of a member's parts: its `link_bytes` are those that its link has carried. Its consumer is
  /// the group, which passes them on. All 0 for a member that carries nothing.
  [[nodiscard]] FeedStatistics member_stats(std::size_t member) const;
  /// As Loader::timeline, of the group.
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  /// One line for each field: how the first receiver's parts of it travel, and why. The last line says how
  /// many bytes each link has carried.
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] const Dataset& dataset() const noexcept;
  [[nodiscard]] const DeviceGroup& group() const noexcept;
  [[nodiscard]] const LoaderOptions& options() const noexcept;

  /// As Loader.
  void close();

 private:
  explicit GroupLoader(std::shared_ptr<class GroupLoaderState> state);

  std::shared_ptr<class GroupLoaderState> state_;
};

}  // namespace penstock
