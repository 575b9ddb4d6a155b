#include <penstock/core/error.hpp>
#include <penstock/data/batch_sampler.hpp>
#include <penstock/data/sampler.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::uint64_t kMaximumWorld = std::uint64_t{1} << 31;
constexpr std::uint64_t kMaximumSamples = std::uint64_t{1} << 61;

void check_same(const char* what, std::uint64_t saved, std::uint64_t here) {
  if (saved != here) {
    throw InvalidArgument(
        fmt::format("The saved sampler state has {} {}, this sampler has {}: give both the same dataset and "
                    "shuffling options, or start afresh.",
                    what, saved, here));
  }
}

}  // namespace

Sampler::Sampler(std::uint64_t sample_count, SamplerOptions options)
    : sample_count_(sample_count), options_(std::move(options)), size_(size_of(0)) {
  if (sample_count == 0) throw InvalidArgument("A dataset of zero samples cannot be sampled.");
  if (sample_count > kMaximumSamples) {
    throw InvalidArgument(fmt::format("{} samples are more than a sampler can count (2^61).", sample_count));
  }
  if (options_.batch_size == 0) throw InvalidArgument("A batch size of 0 was asked for; use 1 or more.");
  const Shard& shard = options_.shard;
  if (shard.world_size == 0 || shard.world_size > kMaximumWorld) {
    throw InvalidArgument(
        fmt::format("A world size of {} was asked for; use 1 to {}.", shard.world_size, kMaximumWorld));
  }
  if (shard.rank >= shard.world_size) {
    throw InvalidArgument(fmt::format("Rank {} of a world size of {} was asked for; use a rank from 0 to {}.",
                                      shard.rank, shard.world_size, shard.world_size - 1));
  }
  if (shard_samples(0) == 0) {
    throw InvalidArgument(
        fmt::format("{} samples shared by {} ranks with the shard's drop_last leave none for each: use fewer "
                    "ranks, or let the order wrap around.",
                    size_, shard.world_size));
  }
  if (batches_per_epoch() == 0) {
    throw InvalidArgument(fmt::format(
        "A batch of {} is larger than the {} samples that this rank gets in an epoch, and "
        "drop_last leaves out batches that are not full: use a smaller batch, or drop_last=false.",
        options_.batch_size, shard_samples(0)));
  }
  start_epoch(0);
}

std::uint64_t Sampler::shard_samples(std::uint64_t from) const noexcept {
  const std::uint64_t left = size_ - from;
  const std::uint64_t whole = left / options_.shard.world_size;
  const bool pad = left % options_.shard.world_size != 0 && !options_.shard.drop_last;
  return whole + (pad ? 1 : 0);
}

std::uint64_t Sampler::batches_of(std::uint64_t samples) const noexcept {
  const std::uint64_t whole = samples / options_.batch_size;
  return whole + (samples % options_.batch_size != 0 && !options_.drop_last ? 1 : 0);
}

std::uint64_t Sampler::in_batches(std::uint64_t samples) const noexcept {
  return options_.drop_last ? samples - samples % options_.batch_size : samples;
}

std::uint64_t Sampler::samples_per_epoch() const noexcept { return in_batches(shard_samples(0)); }

std::uint64_t Sampler::batches_per_epoch() const noexcept { return batches_of(shard_samples(0)); }

std::uint64_t Sampler::samples_left() const noexcept { return in_batches(shard_samples(base_) - taken_); }

std::uint64_t Sampler::batches_left() const noexcept { return batches_of(samples_left()); }

std::uint64_t Sampler::size_of(std::uint64_t epoch) const {
  return options_.samples_in_epoch ? options_.samples_in_epoch(epoch) : sample_count_;
}

void Sampler::start_epoch(std::uint64_t epoch) {
  size_ = size_of(epoch);
  if (options_.shuffle && !options_.samples_in_epoch) order_.emplace(size_, options_.seed, epoch);
  epoch_ = epoch;
  base_ = 0;
  taken_ = 0;
}

SampleRun Sampler::peek() const noexcept {
  const std::uint64_t stride = options_.shard.world_size;
  return {.order = order_,
          .size = size_,
          .first = base_ + options_.shard.rank + taken_ * stride,
          .stride = stride,
          .count = std::min(samples_left(), options_.batch_size),
          .epoch = epoch_};
}

SampleRun Sampler::next_run() noexcept {
  SampleRun run = peek();
  taken_ += run.count;
  return run;
}

std::size_t Sampler::next(std::span<std::uint64_t> indices) {
  const SampleRun run = peek();
  run.fill(indices);
  taken_ += run.count;
  return static_cast<std::size_t>(run.count);
}

SamplerState Sampler::state() const noexcept {
  SamplerState state;
  state.sample_count = sample_count_;
  state.seed = options_.seed;
  state.shuffle = options_.shuffle;
  state.epoch = epoch_;
  state.consumed = std::min(size_, base_ + taken_ * options_.shard.world_size);
  return state;
}

void Sampler::restore(const SamplerState& state) {
  check_same("sample_count", state.sample_count, sample_count_);
  check_same("shuffle", state.shuffle ? 1 : 0, options_.shuffle ? 1 : 0);
  if (options_.shuffle) {
    check_same("seed", state.seed, options_.seed);
    check_same("order_version", state.order_version, KeyedPermutation::kVersion);
  }
  if (const std::uint64_t size = size_of(state.epoch); state.consumed > size) {
    throw InvalidArgument(fmt::format(
        "The saved sampler state has consumed {} of {} samples: it is damaged; start the epoch afresh.",
        state.consumed, size));
  }
  start_epoch(state.epoch);
  base_ = state.consumed;
}

// Without comparisons, so that compilers take several indices at a time, also where they compare no 64 bits.
bool are_below(std::span<const std::uint64_t> indices, std::uint64_t count) noexcept {
  std::uint64_t outside = 0;
  for (const std::uint64_t index : indices) outside |= index | (count - 1 - index);
  return outside >> 63 == 0;
}

}  // namespace penstock
