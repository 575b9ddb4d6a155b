#include "link/group_bench.hpp"
#include "link/link_bench.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/link/group_measurement.hpp>
#include <penstock/transfer/group_engine.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace penstock {

namespace {

constexpr std::array kChunks{1 * kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB};
constexpr std::array kSlots{2u, 4u, 8u};
constexpr unsigned kUsualSlots = 4;
// With fewer chunks on each link, those at the beginning and at the end would decide.
constexpr std::size_t kLeastChunks = 8;
// The least memory within this share of the best rate is kept.
constexpr double kAsGood = 0.99;

std::vector<std::size_t> everyone_in(const DeviceGroup& group) {
  std::vector<std::size_t> members(group.size());
  std::iota(members.begin(), members.end(), std::size_t{0});
  return members;
}

void measure_links(GroupBench& bench, GroupProfile& profile) {
  for (std::size_t i = 0; i < bench.group().size(); ++i) {
    bench.begin(fmt::format("the link of {}", bench.group()[i].info().spec));
    profile.members[i].link = bench.rate_of([&] { bench.pull(i), bench.synchronize_all(); }, {{i}});
  }
}

/// The rates of the links on the devices' clocks, since unlike links end at different times.
void measure_links_at_once(GroupBench& bench, GroupProfile& profile) {
  const DeviceGroup& group = bench.group();
  std::vector<Event> begins;
  std::vector<Event> ends;
  for (std::size_t i = 0; i < group.size(); ++i) {
    begins.push_back(group[i].create_event(EventTiming::on));
    ends.push_back(group[i].create_event(EventTiming::on));
  }
  bench.begin("all links at once");
  const auto bytes = static_cast<double>(bench.bytes());
  const double sum_seconds = bench.seconds_of(
      [&] {
        for (std::size_t i = 0; i < group.size(); ++i) {
          begins[i].record(bench.stream(i));
          bench.pull(i);
          ends[i].record(bench.stream(i));
        }
        bench.synchronize_all();
        double sum = 0;
        for (std::size_t i = 0; i < group.size(); ++i) sum += bytes / ends[i].seconds_since(begins[i]);
        return bytes / sum;
      },
      everyone_in(group));
  profile.links_at_once = bytes / sum_seconds;
  bench.begin("each pulls all");
  profile.replicated = bench.rate_of(
      [&] {
        for (std::size_t i = 0; i < group.size(); ++i) bench.pull(i);
        bench.synchronize_all();
      },
      everyone_in(group));
}

void measure_peers(GroupBench& bench, GroupProfile& profile) {
  const DeviceGroup& group = bench.group();
  for (std::size_t from = 0; from < group.size(); ++from) {
    profile.members[from].peers.assign(group.size(), 0);
    for (std::size_t to = 0; to < group.size(); ++to) {
      if (from == to || !group.reaches(from, to)) continue;
      bench.begin(fmt::format("{} to {}", group[from].info().spec, group[to].info().spec));
      bench.pull(from);
      bench.synchronize_all();
      const auto copy = [&] {
        bench.stream(from).copy(bench.places()[to], bench.places()[from], bench.bytes(), CopyDirection::d2d);
        bench.stream(from).synchronize();
      };
      profile.members[from].peers[to] = bench.rate_of(copy, {{to}});
    }
  }
}

double feed_once(GroupBench& bench, const GroupOptions& options) {
  GroupEngine engine(bench.group(), options);
  return bench.rate_of([&] { engine.feed_once(bench.places(), bench.source(), bench.bytes()).synchronize(); },
                       everyone_in(bench.group()));
}

void search_chunks(GroupBench& bench, GroupMeasurement& result) {
  const auto try_out = [&](std::size_t chunk_bytes, unsigned slots) {
    bench.begin(fmt::format("feed once in chunks of {}", format_bytes(chunk_bytes)));
    result.trials.push_back(
        {chunk_bytes, slots, feed_once(bench, {.chunk_bytes = chunk_bytes, .slots = slots})});
  };
  const std::size_t largest = bench.bytes() / (kLeastChunks * bench.group().size());
  const auto keep = [&] {
    const double best = std::ranges::max(result.trials, {}, &GroupTrial::fed_once).fed_once;
    const auto memory = [](const GroupTrial& trial) { return trial.chunk_bytes * trial.slots; };
    const GroupTrial* kept = nullptr;
    for (const GroupTrial& trial : result.trials) {
      const bool good = trial.fed_once >= kAsGood * best;
      if (good && (kept == nullptr || memory(trial) < memory(*kept))) kept = &trial;
    }
    result.profile.chunk_bytes = kept->chunk_bytes;
    result.profile.slots = kept->slots;
    result.profile.fed_once = kept->fed_once;
  };
  for (const std::size_t chunk : kChunks) {
    if (chunk <= largest) try_out(chunk, kUsualSlots);
  }
  if (result.trials.empty()) try_out(std::max(largest, 4 * kKiB), kUsualSlots);
  keep();
  const std::size_t chunk = result.profile.chunk_bytes;
  for (const unsigned slots : kSlots) {
    if (slots != kUsualSlots) try_out(chunk, slots);
  }
  keep();
}

void measure_relays(GroupBench& bench, GroupProfile& profile) {
  for (std::size_t i = 0; i < bench.group().size(); ++i) {
    GroupEngine engine(bench.group(), {.chunk_bytes = profile.chunk_bytes, .slots = profile.slots});
    bench.begin(fmt::format("relay to {}", bench.group()[i].info().spec));
    profile.members[i].relayed = bench.rate_of(
        [&] { engine.relay(i, bench.places()[i], bench.source(), bench.bytes()).synchronize(); }, {{i}});
  }
}

}  // namespace

GroupMeasurement measure_group(const DeviceGroup& group, const GroupMeasurementOptions& options) {
  if (group.size() < 2) throw InvalidArgument("A group of one device has no rates; name two or more.");
  if (options.bytes < GroupBench::kLeastBytes) {
    throw InvalidArgument(fmt::format("A copy to measure has at least {}; {} is too small.",
                                      format_bytes(GroupBench::kLeastBytes), format_bytes(options.bytes)));
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t members = group.size();
  GroupMeasurement result;
  result.notes = group.unreached();
  result.profile = GroupProfile::named_after(group);
  // Links, all at once, pairs, trials, relays.
  const std::size_t measurements =
      members + 2 + members * (members - 1) + kChunks.size() + kSlots.size() - 1 + members;
  GroupBench bench(group, options, measurements, result.notes);
  measure_links(bench, result.profile);
  measure_links_at_once(bench, result.profile);
  measure_peers(bench, result.profile);
  search_chunks(bench, result);
  measure_relays(bench, result.profile);
  result.profile.measured_at = utc_now();
  result.bytes = bench.bytes();
  result.verified_bytes = bench.verified_bytes();
  result.seconds = seconds_since(begin);
  if (options.progress) options.progress({1, "done"});
  return result;
}

std::string GroupMeasurement::to_json() const {
  using nlohmann::json;
  json tried = json::array();
  for (const GroupTrial& trial : trials) {
    tried.push_back(
        {{"chunk_bytes", trial.chunk_bytes}, {"slots", trial.slots}, {"fed_once", trial.fed_once}});
  }
  const json document{{"profile", json::parse(profile.to_json())},
                      {"trials", std::move(tried)},
                      {"bytes", bytes},
                      {"notes", notes},
                      {"verified_bytes", verified_bytes},
                      {"seconds", seconds}};
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace penstock
