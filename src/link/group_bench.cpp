#include "link/group_bench.hpp"

#include "link/link_bench.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>

namespace penstock {

namespace {

constexpr std::uint8_t kNotMeasured = 0xA5;
const PoolOptions kPages{.segment_bytes = 64 * kKiB, .alignment = 4096};

}  // namespace

GroupBench::GroupBench(const DeviceGroup& group, const GroupMeasurementOptions& options,
                       std::size_t measurements, std::vector<std::string>& notes)
    : group_(group),
      options_(options),
      measurements_(measurements),
      budget_(options.quick ? 4 : 15),
      pinned_(make_pinned_pool(group_[0], kPages)) {
  report();
  for (std::size_t i = 0; i < group_.size(); ++i) {
    pools_.push_back(make_device_pool(group_[i], {.segment_bytes = 64 * kKiB}));
    streams_.push_back(group_[i].create_stream());
  }
  const std::size_t wanted = std::bit_floor(options.bytes);
  for (std::size_t bytes = wanted;; bytes /= 2) {
    try {
      take(bytes);
      break;
    } catch (const OutOfMemory& error) {
      if (bytes <= kLeastBytes) throw;
      if (bytes == wanted) notes.emplace_back(error.what());
    }
  }
  if (bytes_ < wanted) {
    notes.push_back(fmt::format("Copies have {} instead of {}.", format_bytes(bytes_), format_bytes(wanted)));
  }
  std::mt19937_64 random(std::random_device{}());
  for (std::size_t at = 0; at < bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(source_.data() + at, &word, sizeof word);
  }
}

void GroupBench::take(std::size_t bytes) {
  memory_.clear();
  places_.clear();
  locks_.clear();
  source_ = {};
  back_ = {};
  for (Pool& pool : pools_) {
    memory_.push_back(pool.allocate(bytes));
    places_.push_back(memory_.back().data());
  }
  source_ = pinned_.allocate(bytes);
  back_ = pinned_.allocate(bytes);
  for (std::size_t i = 1; i < group_.size(); ++i) {
    for (const Buffer* buffer : {&source_, &back_}) {
      if (group_[i].kind_of(buffer->data()) == MemoryKind::pageable) {
        locks_.emplace_back(group_[i], buffer->data(), buffer->size());
      }
    }
  }
  bytes_ = bytes;
}

void GroupBench::pull(std::size_t member) const {
  streams_[member].copy(places_[member], source_.data(), bytes_, CopyDirection::h2d);
}

void GroupBench::synchronize_all() const {
  for (const Stream& stream : streams_) stream.synchronize();
}

void GroupBench::report() const {
  if (!options_.progress) return;
  const double done = static_cast<double>(measured_) / static_cast<double>(measurements_);
  options_.progress({std::min(done, 1.0), what_});
}

void GroupBench::begin(std::string_view what) {
  what_ = what;
  report();
  ++measured_;
}

double GroupBench::seconds_of(const std::function<double()>& once, std::span<const std::size_t> receivers) {
  const double slice = budget_ / static_cast<double>(measurements_);
  const std::size_t most = options_.repetitions != 0 ? options_.repetitions : 200;
  const std::size_t least = std::min<std::size_t>(most, options_.quick ? 2 : 3);
  poison(receivers);
  once();
  for (const std::size_t member : receivers) check(member);
  std::vector<double> seconds;
  const auto begin = std::chrono::steady_clock::now();
  while (seconds.size() < least || (seconds.size() < most && seconds_since(begin) < slice)) {
    seconds.push_back(once());
    report();
  }
  return summarize(seconds).median;
}

double GroupBench::rate_of(const std::function<void()>& work, std::span<const std::size_t> receivers) {
  const double seconds = seconds_of(
      [&] {
        const auto begin = std::chrono::steady_clock::now();
        work();
        return seconds_since(begin);
      },
      receivers);
  return static_cast<double>(bytes_) / seconds;
}

void GroupBench::poison(std::span<const std::size_t> members) const {
  for (const std::size_t member : members) {
    streams_[member].fill(places_[member], kNotMeasured, bytes_);
    streams_[member].synchronize();
  }
}

void GroupBench::check(std::size_t member) {
  std::memset(back_.data(), kNotMeasured, bytes_);
  streams_[member].copy(back_.data(), places_[member], bytes_, CopyDirection::d2h);
  streams_[member].synchronize();
  verified_bytes_ += bytes_;
  if (std::memcmp(back_.data(), source_.data(), bytes_) == 0) return;
  throw Error(
      fmt::format("{} brought wrong bytes to {}: a link, the driver or memory is faulty. Do not trust "
                  "measurements on it.",
                  what_, group_[member].info().spec));
}

}  // namespace penstock
