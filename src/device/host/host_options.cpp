#include "core/shared/parse_number.hpp"
#include "device/host/host_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace penstock {

namespace {

constexpr int kMostIndex = 15;

double parse_value(std::string_view part, std::string_view text) {
  const auto number = parse_number<double>(text);
  if (!number || !(*number >= 0 && *number <= 1e9))
    throw InvalidArgument(fmt::format("'{}' needs a number from 0 to 1e9 after its '='", part));
  return *number;
}

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

int parse_host_index(std::string_view part) {
  const auto index = parse_number<int>(part);
  if (!index || *index > kMostIndex) {
    throw InvalidArgument(
        fmt::format("'{}' is not a host device; write host:N with N from 0 to {}, or host:N,key=value", part,
                    kMostIndex));
  }
  return *index;
}

void check_key(std::string_view key) {
  constexpr std::array<std::string_view, 6> kKeys = {"link", "latency", "peer", "memory", "lock", "late"};
  if (std::ranges::find(kKeys, key) != kKeys.end()) return;
  throw InvalidArgument(
      fmt::format("unknown option '{}'; host takes {}, each written key=value", key, fmt::join(kKeys, ", ")));
}

void read_part(HostOptions& options, std::string_view part) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  check_key(key);
  if (equals == std::string_view::npos || equals + 1 == part.size()) {
    throw InvalidArgument(fmt::format("option '{}' of host has no value; write {}=VALUE", key, key));
  }
  const std::string_view value = part.substr(equals + 1);
  if (key == "link") {
    options.link_bytes_per_second = parse_value(part, value) * kGB;
  } else if (key == "latency") {
    options.latency = std::chrono::nanoseconds(std::llround(parse_value(part, value) * 1e3));
  } else if (key == "peer") {
    options.peer_bytes_per_second = parse_value(part, value) * kGB;
  } else if (key == "memory") {
    options.memory_bytes = parse_bytes(value);
    if (options.memory_bytes == 0) throw InvalidArgument("host:memory=0 leaves no memory to work with");
  } else if (key == "lock") {
    options.lock_bytes = parse_bytes(value);
  } else {
    if (value != "0" && value != "1")
      throw InvalidArgument(fmt::format("'{}' must be late=0 or late=1", part));
    options.late = value == "1";
  }
}

std::string host_spec(const HostOptions& options) {
  std::string parts = options.index != 0 ? fmt::format(":{}", options.index) : "";
  const auto add = [&](std::string_view key, const auto& value) {
    parts += fmt::format("{}{}={}", parts.empty() ? ":" : ",", key, value);
  };
  if (options.link_bytes_per_second > 0) add("link", options.link_bytes_per_second / kGB);
  if (options.latency.count() > 0) add("latency", static_cast<double>(options.latency.count()) / 1e3);
  if (options.peer_bytes_per_second > 0) add("peer", options.peer_bytes_per_second / kGB);
  if (options.memory_bytes > 0) add("memory", options.memory_bytes);
  if (options.lock_bytes) add("lock", *options.lock_bytes);
  if (options.late) add("late", 1);
  return "host" + parts;
}

/// The tuning of a device whose link is one thread.
DeviceTuning host_tuning() {
  DeviceTuning tuning;
  tuning.unstated_link_rate = tuning.device_copy_rate = 6e9;
  tuning.staging_threads = 1;  // keeps the link busy
  tuning.fill_threads = 1;
  // A slot, and so the packed bytes, should stay in the processor's cache until the link has read it.
  tuning.staged_chunks = {256 * kKiB, 64 * kKiB, 1 * kMiB, 4 * kMiB};
  tuning.packing.first_chunk_bytes = 128 * kKiB;
  tuning.packing.largest_chunk_bytes = 256 * kKiB;
  tuning.packing.window_bytes = 512 * kKiB;
  tuning.packing.streaming_stores = false;
  return tuning;
}

}  // namespace

HostOptions parse_host_options(std::string_view text) {
  HostOptions options;
  const auto take_part = [&] {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
  };
  if (!text.empty() && is_digit(text.front())) options.index = parse_host_index(take_part());
  while (!text.empty()) read_part(options, take_part());
  return options;
}

DeviceInfo host_device_info(const HostOptions& options) {
  const HostTopology& topology = host_topology();
  DeviceInfo info;
  info.spec = host_spec(options);
  info.backend = "host";
  info.index = options.index;
  info.name = topology.processor;
  info.driver = PENSTOCK_VERSION;
  info.multiprocessors = topology.processors;
  info.in_host_memory = true;
  info.tuning = host_tuning();
  info.memory_bytes = options.memory_bytes != 0 ? options.memory_bytes : topology.memory_bytes / 2;
  return info;
}

}  // namespace penstock
