#include "loader/rank_group.hpp"

#include "loader/link_weights.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

namespace {

/// The facts that the processes of a group must have in common, as a text.
std::string facts_of(const Dataset& dataset, const Device& device, const LoaderOptions& options) {
  std::string facts = fmt::format("{} samples on {} in batches of {}, {}seed {}, drop_last {}, rank {} of {}",
                                  dataset.sample_count(), device.info().backend, options.batch_size,
                                  options.shuffle ? "shuffled by " : "in order, ", options.seed,
                                  options.drop_last, options.shard.rank, options.shard.world_size);
  if (options.batch_sampler) facts += "; chosen by a sampler";
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    const Field& field = dataset.field(f);
    fmt::format_to(std::back_inserter(facts), "; {} {} [{}]", field.name,
                   dtype_name(field.narrowed_from.value_or(field.dtype)), fmt::join(field.shape, ", "));
  }
  for (const FieldOptions& field : options.fields) {
    if (!field.to) continue;
    fmt::format_to(std::back_inserter(facts), "; {} as {} * [{}] + [{}] along {}", field.name,
                   dtype_name(*field.to), fmt::join(field.scale, ", "), fmt::join(field.shift, ", "),
                   field.channel_axis);
  }
  return facts;
}

/// Throws InvalidArgument, in all processes, if two have one GPU. An instance of MIG is a GPU of its own.
/// Memory of host devices is each process's own, whatever their names.
void refuse_shared_gpus(const Device& device, ProcessBoard& board) {
  const std::vector<std::string> gpus = board.exchange(device.info().uuid);
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto first = static_cast<std::size_t>(std::ranges::find(gpus, gpus[rank]) - gpus.begin());
    if (gpus[rank].empty() || first == rank) continue;
    throw InvalidArgument(fmt::format(
        "Ranks {} and {} of the group (PIDs {} and {}) have one GPU, {}. Give each rank its own, such as "
        "cuda:N for the local rank N.",
        first, rank, board.process(first), board.process(rank), gpus[rank]));
  }
}

std::string text_of(const SamplerState& place) {
  return fmt::format("sample {} of epoch {}", place.consumed, place.epoch);
}

}  // namespace

RankGroup::RankGroup(ProcessBoardOptions group, const Dataset& dataset, const Device& device,
                     const LoaderOptions& options, FeedPlan whole)
    : whole_(std::move(whole)), board_(std::move(group)) {
  try {
    meet(dataset, device, options);
  } catch (...) {
    complain(std::current_exception());
    throw;
  }
}

void RankGroup::meet(const Dataset& dataset, const Device& device, const LoaderOptions& options) {
  board_.agree(facts_of(dataset, device, options));
  refuse_shared_gpus(device, board_);
  if (size() == 1) {
    refusal_ = "the group is one process";
    return;
  }
  weights_ = weights_of_links(options.profile, board_);
  split_.emplace(weights_);
  parts_.emplace(device, board_, whole_, *split_);
  refusal_ = parts_->refusal();
}

void RankGroup::go_to(const SamplerState& place) { parts_->start_anew(text_of(place)); }

void RankGroup::refuse_late(PeerParts::Clock::time_point since) const {
  if (!parts_) return;
  const std::optional<PeerParts::Awaited> awaited = parts_->awaited();
  if (!awaited) return;
  if (PeerParts::Clock::now() - std::max(since, awaited->since) <= options().timeout) return;
  throw Error(fmt::format(
      "No batch came within {} s: rank {} of the group (PID {}) lives, and has not done its part. All "
      "processes of a group must ask for equally many batches.",
      static_cast<double>(options().timeout.count()) / 1000, awaited->rank, board_.process(awaited->rank)));
}

void RankGroup::complain(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    board_.complain(error.what());
  } catch (...) {
    board_.complain("an unknown exception");
  }
}

void RankGroup::leave(std::uint64_t count, std::chrono::milliseconds patience) noexcept {
  if (parts_) parts_->leave(count, patience);
}

std::uint64_t number_of(std::span<const std::uint64_t> indices) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, of whole numbers
  for (const std::uint64_t index : indices) {
    hash = (hash ^ index) * 0x100000001b3;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace penstock
