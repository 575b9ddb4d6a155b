#include "loader/make_line.hpp"

#include "loader/gather_source.hpp"
#include "loader/group_source.hpp"
#include "loader/rank_source.hpp"
#include "loader/whole_batches.hpp"
#include "loader/whole_rank_source.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

namespace {

/// The processes cannot read each other's memory.
struct CannotReach {
  std::string why;
};

void check(const LoaderOptions& options, const Destination& destination) {
  if (destination.kind() == Destination::Kind::device) return;
  if (options.batch_sampler && options.batch_sampler->may_tear()) {
    throw InvalidArgument(
        "Samples that others overwrite meanwhile are fed to one device over its own link: name one device.");
  }
  if (options.data_may_change && !options.batch_sampler) {
    throw InvalidArgument(
        "Without a batch sampler, a loader over several links reads ahead from epoch to epoch: its data must "
        "not change.");
  }
  if (destination.kind() == Destination::Kind::relayed && options.residency.kind != Residency::Kind::none) {
    throw InvalidArgument(
        "Samples that stay on a device cross no link again, and a relay would send them each time: leave out "
        "the residency or the relay.");
  }
}

std::unique_ptr<BatchSource> source_of_group(const std::shared_ptr<RankGroup>& group, Dataset dataset,
                                             const Device& device, const LoaderOptions& options,
                                             BatchOrder& order) {
  if (group->feeds_once()) {
    return std::make_unique<RankSource>(group, std::move(dataset), device, options, order);
  }
  if (group->size() > 1) {
    log_warning(
        fmt::format("Each process of the group brings whole batches over its own link: they cannot read each "
                    "other's memory ({}). To use one link for each byte, feed shares and gather them with "
                    "torch.distributed.",
                    group->refusal()));
  }
  return std::make_unique<WholeRankSource>(group, std::move(dataset), device, options, order);
}

/// `only_parts`: throws CannotReach if processes cannot read each other's memory.
std::unique_ptr<BatchSource> rank_source(Dataset dataset, const Destination& rank, bool only_parts,
                                         const LoaderOptions& options, BatchOrder& order) {
  const Device& device = rank.receivers()[0];
  const auto group = std::make_shared<RankGroup>(rank.processes(), dataset, device, options,
                                                 plan_of_whole(dataset, options, order.largest_batch()));
  if (only_parts && !group->feeds_once()) throw CannotReach{group->refusal()};
  try {
    return source_of_group(group, std::move(dataset), device, options, order);
  } catch (...) {
    group->complain(std::current_exception());
    throw;
  }
}

std::unique_ptr<BatchSource> source_of(Dataset dataset, const Destination& destination, bool only_parts,
                                       const LoaderOptions& options, BatchOrder& order) {
  check(options, destination);
  switch (destination.kind()) {
    case Destination::Kind::group:
    case Destination::Kind::relayed:
      return std::make_unique<GroupSource>(std::move(dataset), destination, options, order);
    case Destination::Kind::rank:
      return rank_source(std::move(dataset), destination, only_parts, options, order);
    case Destination::Kind::device:
      break;
  }
  return std::make_unique<GatherSource>(std::move(dataset), destination.receivers()[0], options, order);
}

std::shared_ptr<BatchLine> make(Dataset dataset, Destination destination, LoaderOptions options,
                                bool only_parts) {
  const Dataset fed = dataset;
  const auto make_source = [&](const Destination& to, const LoaderOptions& own, BatchOrder& order) {
    return source_of(std::move(dataset), to, only_parts, own, order);
  };
  return std::make_shared<BatchLine>(std::move(destination), std::move(options), fed, make_source);
}

}  // namespace

std::shared_ptr<BatchLine> make_line(Dataset dataset, Destination destination, LoaderOptions options) {
  return make(std::move(dataset), std::move(destination), std::move(options), false);
}

std::shared_ptr<BatchLine> make_line_of_parts(Dataset dataset, Destination rank, LoaderOptions options,
                                              std::string& why) {
  try {
    return make(std::move(dataset), std::move(rank), std::move(options), true);
  } catch (const CannotReach& refused) {
    why = refused.why;
    return nullptr;
  }
}

}  // namespace penstock
