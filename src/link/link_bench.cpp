#include "link/link_bench.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <random>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kBlock = 4 * kMiB;
constexpr std::size_t kBlocksBetweenReports = 8;
constexpr std::uint8_t kPoison = 0xA5;

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Takes whole pages, since registered memory must not share a page with other registered memory.
Pages take_pageable(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kPage, align_up(bytes, kPage)));
  if (data == nullptr) throw OutOfMemory("pageable host memory", bytes, 0, 0);
  return Pages(data);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

LinkBench::LinkBench(Device device, const LinkMeasurementOptions& options, std::vector<std::string>& notes)
    : device_(std::move(device)),
      options_(options),
      budget_(options.seconds > 0 ? options.seconds
              : options.quick     ? 6
                                  : 30),
      memory_(take_what_fits(notes)),
      stream_(device_.create_stream()),
      workers_(device_.host_workers()) {
  fill_sources();
}

LinkBench::~LinkBench() = default;

LinkBench::Memory LinkBench::take(std::size_t bytes) {
  Memory memory;
  memory.capacity = bytes;
  const PoolOptions exact{.segment_bytes = 64 * kKiB};
  const auto allocate = [&](auto make_pool) {
    report_again();
    return make_pool(device_, exact).allocate(bytes);
  };
  memory.device_source = allocate(make_device_pool);
  memory.device_target = allocate(make_device_pool);
  memory.pinned_source = allocate(make_pinned_pool);
  memory.pinned_target = allocate(make_pinned_pool);
  memory.pageable_source = take_pageable(bytes);
  memory.pageable_target = take_pageable(bytes);
  return memory;
}

LinkBench::Memory LinkBench::take_what_fits(std::vector<std::string>& notes) {
  const std::size_t wanted = std::bit_floor(options_.max_bytes);
  const std::size_t host_room = host_topology().memory_bytes / 8;
  const std::size_t device_room = device_.memory().free / 5 * 2;
  const std::size_t room =
      std::max(LinkBench::kLeastCapacity, std::bit_floor(std::min(host_room, device_room)));
  std::size_t bytes = std::min(wanted, room);
  std::string reason = bytes < wanted ? fmt::format("{} of host memory and {} of free device memory",
                                                    format_bytes(host_topology().memory_bytes),
                                                    format_bytes(device_.memory().free))
                                      : std::string();
  for (;; bytes /= 2) {
    try {
      Memory memory = take(bytes);
      if (bytes < wanted) {
        notes.push_back(fmt::format("The largest copies have {} instead of {}: {}.", format_bytes(bytes),
                                    format_bytes(wanted), reason));
      }
      return memory;
    } catch (const OutOfMemory& error) {
      if (bytes <= LinkBench::kLeastCapacity) throw;
      reason = error.what();
    } catch (const Unsupported& error) {
      if (bytes <= LinkBench::kLeastCapacity) throw;
      reason = error.what();
    }
    while (!reason.empty() && reason.back() == '.') reason.pop_back();
  }
}

void LinkBench::for_each_block(std::size_t bytes, const std::function<void(std::size_t, std::size_t)>& body) {
  if (bytes <= kBlock) return body(0, bytes);
  const std::size_t blocks = (bytes + kBlock - 1) / kBlock;
  for (std::size_t first = 0; first < blocks; first += kBlocksBetweenReports) {
    report_again();
    workers_->for_each(std::min(kBlocksBetweenReports, blocks - first), [&](std::size_t i) {
      const std::size_t begin = (first + i) * kBlock;
      body(begin, std::min(kBlock, bytes - begin));
    });
  }
}

void LinkBench::fill_sources() {
  std::random_device random;
  const std::uint64_t seed = (std::uint64_t{random()} << 32) | random();
  for_each_block(capacity(), [&](std::size_t offset, std::size_t bytes) {
    for (std::size_t at = offset; at < offset + bytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = mix(seed ^ at);
      std::memcpy(pinned_source() + at, &word, sizeof word);
    }
    std::memcpy(pageable_source() + offset, pinned_source() + offset, bytes);
  });
  poison_host(pageable_target(), capacity());
  poison_host(pinned_target(), capacity());
  stream_.copy(device_source(), pinned_source(), capacity(), CopyDirection::h2d);
  stream_.synchronize();
}

std::vector<std::size_t> LinkBench::sizes() const {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 4 * kKiB; bytes <= capacity(); bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

void LinkBench::report(std::string_view step, double fraction) {
  step_ = step;
  fraction_ = fraction;
  if (options_.progress) options_.progress({fraction_, step_});
  reported_ = std::chrono::steady_clock::now();
}

void LinkBench::report_again() { report(std::string(step_), fraction_); }

Summary LinkBench::repeat(std::size_t bytes, const std::function<double()>& once) {
  constexpr std::size_t kLarge = 64 * kMiB;
  const bool late = seconds_since(begin_) > budget_;
  const double slice = budget_ / (late ? 10000 : 1000);
  const std::size_t most = options_.repetitions != 0 ? options_.repetitions : 200;
  const std::size_t least = std::min<std::size_t>(most, late ? 2 : quick() || bytes >= kLarge ? 3 : 7);
  // Copies of microseconds also depend on clocks and caches, which take some repetitions to settle.
  constexpr std::size_t kSmall = 4 * kMiB;
  for (std::size_t warm_up = bytes >= kLarge ? 1 : late || bytes > kSmall ? 3 : 20; warm_up > 0; --warm_up)
    once();
  std::vector<double> seconds;
  const auto begin = std::chrono::steady_clock::now();
  while (seconds.size() < least || (seconds.size() < most && seconds_since(begin) < slice)) {
    seconds.push_back(once());
    if (seconds_since(reported_) > 0.03) report_again();
  }
  return summarize(seconds);
}

Summary LinkBench::repeat_timed(std::size_t bytes, const std::function<void()>& work) {
  return repeat(bytes, [&] {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return seconds_since(begin);
  });
}

void LinkBench::poison_host(std::byte* target, std::size_t bytes) {
  for_each_block(
      bytes, [&](std::size_t offset, std::size_t length) { std::memset(target + offset, kPoison, length); });
}

void LinkBench::poison_device(std::size_t bytes) {
  stream_.fill(device_target(), kPoison, bytes);
  stream_.synchronize();
}

void LinkBench::check_host(std::string_view what, const std::byte* target, std::size_t bytes,
                           std::size_t offset) {
  const std::byte* expected = pinned_source() + offset;
  std::atomic<std::size_t> wrong{bytes};
  for_each_block(bytes, [&](std::size_t at, std::size_t length) {
    if (std::memcmp(target + at, expected + at, length) == 0) return;
    const auto* end = expected + at + length;
    const std::size_t first =
        static_cast<std::size_t>(std::mismatch(expected + at, end, target + at).first - expected);
    std::size_t known = wrong.load();
    while (first < known && !wrong.compare_exchange_weak(known, first)) {
    }
  });
  verified_bytes_ += bytes;
  if (wrong.load() < bytes) {
    throw Error(
        fmt::format("{} of {} brought wrong bytes, the first at offset {}: the link, the driver or the "
                    "memory of {} is faulty. Do not trust measurements on it.",
                    what, format_bytes(bytes), wrong.load(), device_.info().spec));
  }
}

void LinkBench::check_device(std::string_view what, std::size_t bytes) {
  read_back(bytes);
  check_host(what, pinned_target(), bytes);
}

void LinkBench::read_back(std::size_t bytes) {
  poison_host(pinned_target(), bytes);
  stream_.copy(pinned_target(), device_target(), bytes, CopyDirection::d2h);
  stream_.synchronize();
}

}  // namespace penstock
