// Several devices fed once, and one fed over the links of all, beside what their links carry and beside an
// engine without a group, in one run, bytes verified.
//
//   bench_group --devices host:0,link=0.5,peer=4 host:1,link=0.5,peer=4
//   bench_group --devices cuda:0 cuda:1 --mib 2048 --profiles ~/.cache

#include "harness.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/data/save_weights.hpp>
#include <penstock/data/weights.hpp>
#include <penstock/device/device_group.hpp>
#include <penstock/loader/load_weights.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/transfer/group_engine.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <span>

namespace penstock::bench {
namespace {

/// The bytes as the one tensor of a file, which is removed at the end. It stays in the page cache.
class CachedWeights {
 public:
  CachedWeights(const std::filesystem::path& folder, std::span<const std::byte> bytes)
      : path_(folder / fmt::format("penstock-bench-{}.safetensors", ::getpid())) {
    const std::vector<NewWeight> weights{{"weights", "U8", {bytes.size()}}};
    const std::string head = lay_out_weights(weights).head;
    std::ofstream out(path_, std::ios::binary);
    out.write(head.data(), static_cast<std::streamsize>(head.size()));
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw Error(fmt::format("{} cannot be written", path_.string()));
    out.close();
    file_.emplace(path_);
  }
  ~CachedWeights() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  CachedWeights(const CachedWeights&) = delete;
  CachedWeights& operator=(const CachedWeights&) = delete;

  [[nodiscard]] const WeightFile& file() const { return *file_; }

 private:
  const std::filesystem::path path_;
  std::optional<WeightFile> file_;
};

/// What `penstock link` has stored below a cache folder. Without a folder, nothing.
struct StoredProfiles {
  StoredProfiles(const std::filesystem::path& folder, const DeviceGroup& group) {
    if (folder.empty()) return;
    std::string why;
    measured = GroupProfile::load(GroupProfile::file_for(folder, group), group, &why);
    if (!measured) missing.push_back("the group: " + why);
    for (std::size_t i = 0; i < group.size(); ++i) {
      const DeviceInfo& device = group[i].info();
      auto profile = LinkProfile::load(LinkProfile::file_for(folder, device), device, &why);
      if (!profile) missing.push_back(fmt::format("{}: {}", device.spec, why));
      links.push_back(profile ? *std::move(profile) : LinkProfile::defaults(device));
    }
  }

  [[nodiscard]] std::optional<LinkProfile> link(std::size_t member) const {
    return links.empty() ? std::nullopt : std::optional(links[member]);
  }

  std::optional<GroupProfile> measured;
  std::vector<LinkProfile> links;    ///< of each member, in the group's order
  std::vector<std::string> missing;  ///< why defaults stand in for a profile
};

/// Memory on each device, and the same bytes in pinned and in pageable memory of the host.
class GroupBench {
 public:
  GroupBench(const std::vector<std::string>& specs, std::size_t bytes, std::size_t repetitions,
             std::size_t chunk_bytes, unsigned threads, std::filesystem::path folder,
             const std::filesystem::path& profiles)
      : folder_(std::move(folder)),
        group_(open(specs)),
        profiles_(profiles, group_),
        bytes_(bytes),
        repetitions_(repetitions),
        engine_(group_, {.profiles = profiles_.links,
                         .measured = profiles_.measured,
                         .threads = threads,
                         .chunk_bytes = chunk_bytes}),
        pageable_(bytes) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(pageable_.data() + i, &word, 8);
    }
    for (std::size_t i = 0; i < group_.size(); ++i) {
      pinned_pools_.push_back(make_pinned_pool(group_[i]));
      pools_.push_back(make_device_pool(group_[i]));
      memory_.push_back(pools_.back().allocate(bytes));
      places_.push_back(memory_.back().data());
      streams_.push_back(group_[i].create_stream());
      plain_.push_back(std::make_unique<TransferEngine>(
          group_[i], TransferOptions{.profile = profiles_.link(i), .threads = threads}));
      teams_.push_back(std::make_unique<HostWorkers>(
          HostWorkersOptions{.threads = plain_.back()->threads(), .on_start = {}}));
      threads_ += teams_.back()->threads();
    }
    slots_ = pinned_pools_.front().allocate(std::min(kWindow, bytes));
    pinned_ = pinned_pools_.front().allocate(align_up(bytes, 4096));
    std::memcpy(pinned_.data(), pageable_.data(), bytes);
    for (std::size_t i = 0; i < group_.size(); ++i) {
      if (group_[i].kind_of(pinned_.data()) == MemoryKind::pageable) {
        locks_.emplace_back(group_[i], pinned_.data(), pinned_.size());
      }
    }
  }

  void run() {
    std::vector<Contender> race_;
    for (std::size_t i = 0; i < group_.size(); ++i) {
      race_.push_back(
          {"link of " + group_[i].info().spec, [this, i] { pull(i), streams_[i].synchronize(); }});
    }
    const std::size_t links = race_.size();
    race_.push_back({"all links at once", [this] {
                       for (std::size_t i = 0; i < group_.size(); ++i) pull(i);
                       synchronize_all();
                     }});
    race_.push_back({"host copy into pinned slots", [this] {
                       fill_slots([this](std::byte* to, std::size_t from, std::size_t count) {
                         copy_bytes(to, pageable_.data() + from, count, StoreKind::streaming);
                       });
                     }});
    race_.push_back({"the first pulls, then pushes", [this] { pull_and_push(); }});
    race_.push_back({"an engine for each, pageable", [this] {
                       std::vector<Transfer> transfers;
                       for (std::size_t i = 0; i < group_.size(); ++i) {
                         transfers.push_back(plain_[i]->copy(places_[i], pageable_.data(), bytes_));
                       }
                       for (const Transfer& transfer : transfers) transfer.synchronize();
                     }});
    verify(race_.back(), group_.size());
    const std::size_t first_alone = race_.size();
    race_.push_back({"an engine of the first alone, pinned", [this] { send_alone(pinned_.data()); }});
    race_.push_back({"an engine of the first alone, pageable", [this] { send_alone(pageable_.data()); }});
    for (std::size_t i = first_alone; i < race_.size(); ++i) verify(race_[i], 1);
    const std::size_t first = race_.size();
    const auto add = [&](const std::string& name, auto&& transfer) {
      race_.push_back({name, [this, name, transfer] {
                         const std::vector<std::size_t> before = engine_.carried();
                         transfer().synchronize();
                         count(name, before);
                       }});
    };
    add("feed once, pinned", [this] { return engine_.feed_once(places_, pinned_.data(), bytes_); });
    add("feed once, pageable", [this] { return engine_.feed_once(places_, pageable_.data(), bytes_); });
    add("relay, pinned", [this] { return engine_.relay(0, places_[0], pinned_.data(), bytes_); });
    add("relay, pageable", [this] { return engine_.relay(0, places_[0], pageable_.data(), bytes_); });
    for (std::size_t i = first; i < race_.size(); ++i) verify(race_[i], i < first + 2 ? group_.size() : 1);
    race(race_, repetitions_, 1);

    // Of raw copies over all links at once, which may share the host's memory or its PCIe switches.
    const double sum = static_cast<double>(links) * rate(race_[links]);
    run_weights(sum);
    run_loaders(sum);
    double link = 0;
    for (std::size_t i = 0; i < links; ++i) link += rate(race_[i]) / static_cast<double>(links);
    const double filled = rate(race_[links + 1]);
    const bool host_is_slower = filled < sum;
    const std::string host = fmt::format("{} threads into pinned slots", threads_);
    note("each pulls all, all at once", race_[links], link, "a link, alone", 0);
    note("the first pulls all, then pushes to each", race_[links + 2], link, "a link, alone", 0);
    // Engines that know nothing of each other share the host's threads: each gets its part of what as many
    // threads fill.
    note("an engine for each, pageable memory: each of them receives", race_[links + 3],
         host_is_slower ? filled / static_cast<double>(links) : link,
         host_is_slower ? host + ", for each" : "a link, alone", 0.90);
    note("an engine of the first alone, pinned memory", race_[first_alone], rate(race_[0]), race_[0].name, 0);
    note("an engine of the first alone, pageable memory", race_[first_alone + 1], rate(race_[0]),
         race_[0].name, 0);
    for (std::size_t i = first; i < race_.size(); ++i) {
      const bool pageable = (i - first) % 2 != 0;
      const bool held_by_host = pageable && host_is_slower;
      note(race_[i].name + (i < first + 2 ? ": each of them receives" : ": one of them receives"), race_[i],
           held_by_host ? filled : sum, held_by_host ? host : "all links at once",
           held_by_host ? 0.90 : 0.95);
      if (i >= first + 2) {
        const Contender& alone = race_[first_alone + i - first - 2];
        note(race_[i].name + ", beside no relay", race_[i], rate(alone), alone.name, 0);
      }
    }
    for (const Contender& contender : race_) {
      json["measured"][contender.name]["median_seconds"] = contender.summary().median;
    }
    json["threads"] = threads_;
    json["defaults_for"] = profiles_.missing;
    json["loader_carried_bytes"] = loader_carried_;
    json["devices"] = nlohmann::json::array();
    for (std::size_t i = 0; i < group_.size(); ++i) json["devices"].push_back(group_[i].info().spec);
    json["bytes"] = bytes_;
    json["rows"] = to_json(rows);
    json["carried_bytes"] = carried_;
    json["unreached"] = group_.unreached();
  }

  [[nodiscard]] const DeviceGroup& group() const { return group_; }
  [[nodiscard]] const std::vector<std::string>& missing_profiles() const { return profiles_.missing; }

  void print_shares() const {
    fmt::print("Loader of the group: links carried {:.3f} of the bytes that each device got\n",
               static_cast<double>(loader_carried_) / static_cast<double>(loader_delivered_));
    for (const auto& [name, carried] : carried_) {
      double all = 0;
      for (const std::size_t bytes : carried) all += static_cast<double>(bytes);
      fmt::print("{}: carried over the link of", name);
      for (std::size_t i = 0; i < carried.size(); ++i) {
        fmt::print("{} {} {:.1f} %", i == 0 ? "" : ",", group_[i].info().spec,
                   100 * static_cast<double>(carried[i]) / all);
      }
      fmt::print("\n");
    }
  }

  std::vector<Row> rows;
  nlohmann::json json;

 private:
  static DeviceGroup open(const std::vector<std::string>& specs) {
    std::vector<Device> devices;
    for (const std::string& spec : specs) devices.push_back(Device::open(spec));
    return DeviceGroup(std::move(devices));
  }

  [[nodiscard]] double rate(const Contender& contender) const {
    return static_cast<double>(bytes_) / contender.summary().median;
  }

  void note(const std::string& work, const Contender& contender, double beside, const std::string& what,
            double goal) {
    const double ratio = rate(contender) / beside;
    rows.push_back({work, fmt::format("{:.3f} GB/s", rate(contender) / kGB),
                    fmt::format("{:.3f} GB/s: {}", beside / kGB, what), fmt::format("{:.3f}", ratio),
                    goal == 0 ? "" : fmt::format("{:.2f}", goal), ratio >= goal});
  }

  /// Adds what each member has carried since `before`.
  void count(const std::string& name, const std::vector<std::size_t>& before) {
    const std::vector<std::size_t> after = engine_.carried();
    std::vector<std::size_t>& carried = carried_[name];
    carried.resize(after.size());
    for (std::size_t i = 0; i < after.size(); ++i) carried[i] += after[i] - before[i];
  }

  /// The same bytes out of a file in the page cache, beside as many threads that read it into pinned slots.
  void run_weights(double sum) {
    const CachedWeights weights(folder_, pageable_);
    const WeightFile& file = weights.file();
    std::vector<Contender> race_{
        {"host reads of a file into pinned slots",
         [&] {
           fill_slots(
               [&](std::byte* to, std::size_t from, std::size_t count) { file.read(from, {to, count}); });
         }},
        {"weights fed once", [&] { load_weights(engine_, file, places_).synchronize(); }},
        {"weights over relays", [&] { load_weights(engine_, 0, file, places_[0]).synchronize(); }},
        {"weights to the first alone",
         [&] { load_weights(*plain_.front(), file, places_[0]).synchronize(); }}};
    verify(race_[1], group_.size());
    verify(race_[2], 1);
    verify(race_[3], 1);
    race(race_, repetitions_, 1);
    const double read = rate(race_[0]);
    const bool held_by_host = read < sum;
    note("load_weights, an engine of the first alone", race_[3], sum / static_cast<double>(group_.size()),
         "a link, all at once", 0);
    note("load_weights, relay, beside no relay", race_[2], rate(race_[3]), race_[3].name, 0);
    for (std::size_t i = 1; i < 3; ++i) {
      note(fmt::format("load_weights, {}: {} receives", i == 1 ? "feed once" : "relay",
                       i == 1 ? "each of them" : "one of them"),
           race_[i], held_by_host ? read : sum,
           held_by_host ? fmt::format("{} threads read it into pinned slots", threads_) : "all links at once",
           0.90);
    }
    for (const Contender& contender : race_) {
      json["measured"][contender.name]["median_seconds"] = contender.summary().median;
    }
  }

  /// Shuffled epochs of the same bytes, in samples of 64 KiB: by a loader of the group, by one for each
  /// device, and by one for the first device over the links of all. They lock the dataset, so this comes
  /// after the races of pageable memory.
  void run_loaders(double sum) {
    constexpr std::size_t kSample = std::size_t{64} << 10;
    const std::size_t samples = bytes_ / kSample;
    const Dataset dataset({read_array({.name = "samples", .dtype = DType::uint8, .shape = {kSample}},
                                      {pageable_.data(), samples * kSample}, nullptr)});
    const LoaderOptions options{
        .batch_size = std::clamp<std::size_t>(samples / 128, 1, 256), .shuffle = true, .seed = 1};
    const GroupLinks stored{.profiles = profiles_.links, .measured = profiles_.measured};
    Loader together(dataset, Destination(group_, stored), options);
    std::vector<Loader> alone;
    for (std::size_t i = 0; i < group_.size(); ++i) {
      LoaderOptions of_its_own = options;
      of_its_own.profile = profiles_.link(i);
      alone.emplace_back(dataset, group_[i], of_its_own);
    }
    Loader relayed(dataset, Destination::relayed(group_, 0, stored), options);
    verify(together, kSample, streams_);
    verify(relayed, kSample, std::span(streams_).first(1));

    // An epoch apart from the last one, so that no batch is read before its turn.
    std::uint64_t epoch = 0;
    std::vector<Contender> race_{{"loader of the group",
                                  [&] {
                                    together.start_epoch(epoch += 2);
                                    while (together.next(streams_)) {
                                    }
                                    synchronize_all();
                                  }},
                                 {"a loader for each",
                                  [&] {
                                    for (Loader& loader : alone) loader.start_epoch(epoch);
                                    for (bool more = true; more;) {
                                      for (std::size_t i = 0; i < alone.size(); ++i) {
                                        more = alone[i].next(streams_[i]).has_value();
                                      }
                                    }
                                    synchronize_all();
                                  }},
                                 {"loader over relays", [&] {
                                    relayed.start_epoch(epoch);
                                    while (relayed.next(std::span(streams_).first(1))) {
                                    }
                                    synchronize_all();
                                  }}};
    race(race_, repetitions_, 1);
    for (std::size_t i = 0; i < group_.size(); ++i) {
      loader_carried_ += together.member_stats(i).link_bytes;
      carried_["loader over relays"].push_back(relayed.member_stats(i).link_bytes);
    }
    loader_delivered_ = together.stats().delivered_bytes;
    note("a Loader for each: each of them receives", race_[1], sum / static_cast<double>(group_.size()),
         "a link, all at once", 0);
    note("Loader of the group: each of them receives", race_[0], sum, "all links at once", 0.95);
    note("Loader over relays: one of them receives", race_[2], sum, "all links at once", 0.95);
    for (const Contender& contender : race_) {
      json["measured"][contender.name]["median_seconds"] = contender.summary().median;
    }
  }

  /// An epoch of the loader, byte by byte.
  void verify(Loader& loader, std::size_t sample_bytes, std::span<const Stream> streams) {
    while (const auto batches = loader.next(streams)) {
      const std::vector<std::uint64_t> indices = batches->front().indices();
      for (std::size_t i = 0; i < batches->size(); ++i) {
        const DeviceField& field = (*batches)[i].field(0);
        std::vector<std::byte> back(field.bytes);
        plain_[i]->copy(back.data(), field.data, field.bytes, {.after = &streams_[i]}).synchronize();
        for (std::size_t s = 0; s < indices.size(); ++s) {
          const std::byte* const stored = pageable_.data() + indices[s] * sample_bytes;
          if (std::memcmp(back.data() + s * sample_bytes, stored, sample_bytes) != 0) {
            throw Error(fmt::format("loader of several devices: wrong bytes on {}", group_[i].info().spec));
          }
        }
      }
    }
  }

  void pull(std::size_t member) {
    streams_[member].copy(places_[member], pinned_.data(), bytes_, CopyDirection::h2d);
  }

  void synchronize_all() {
    for (const Stream& stream : streams_) stream.synchronize();
  }

  void pull_and_push() {
    pull(0);
    for (std::size_t i = 1; i < group_.size(); ++i) {
      if (group_.reaches(0, i)) streams_[0].copy(places_[i], places_[0], bytes_, CopyDirection::d2d);
    }
    synchronize_all();
  }

  void send_alone(const std::byte* source) { plain_.front()->copy(places_[0], source, bytes_).synchronize(); }

  /// What as many threads as the engines have can bring into slots, without a device: a team for each engine,
  /// all at once. `fill`: brings bytes from an offset on.
  void fill_slots(const std::function<void(std::byte*, std::size_t, std::size_t)>& fill) {
    const std::size_t places = std::max<std::size_t>(slots_.size() / kGranule, 1);
    std::atomic<std::size_t> next = 0;
    const auto work = [&](HostWorkers& team) {
      team.for_each(team.threads(), [&](std::size_t) {
        for (std::size_t from; (from = next.fetch_add(kGranule)) < bytes_;) {
          fill(slots_.data() + from / kGranule % places * kGranule, from, std::min(kGranule, bytes_ - from));
        }
      });
    };
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < teams_.size(); ++i) {
      others.push_back(std::async(std::launch::async, [&, i] { work(*teams_[i]); }));
    }
    work(*teams_.front());
    for (std::future<void>& other : others) other.get();
  }

  void verify(const Contender& contender, std::size_t receivers) {
    for (std::size_t i = 0; i < receivers; ++i) {
      streams_[i].fill(places_[i], 0xA5, bytes_);
      streams_[i].synchronize();
    }
    contender.run();
    std::vector<std::byte> back(bytes_);
    for (std::size_t i = 0; i < receivers; ++i) {
      plain_[i]->copy(back.data(), places_[i], bytes_).synchronize();
      if (std::memcmp(back.data(), pageable_.data(), bytes_) != 0) {
        throw Error(fmt::format("{}: wrong bytes on {}", contender.name, group_[i].info().spec));
      }
    }
  }

  static constexpr std::size_t kGranule = std::size_t{512} << 10;
  static constexpr std::size_t kWindow = std::size_t{64} << 20;  ///< of all slots

  const std::filesystem::path folder_;  ///< of a file
  const DeviceGroup group_;
  const StoredProfiles profiles_;
  const std::size_t bytes_;
  const std::size_t repetitions_;
  GroupEngine engine_;
  std::vector<std::byte> pageable_;
  std::vector<Pool> pinned_pools_;
  std::vector<Pool> pools_;
  std::vector<Buffer> memory_;
  std::vector<std::byte*> places_;
  std::vector<Stream> streams_;
  std::vector<std::unique_ptr<TransferEngine>> plain_;
  std::vector<std::unique_ptr<HostWorkers>> teams_;  // as large as the engines'
  std::size_t threads_ = 0;                          // of all teams
  std::size_t loader_carried_ = 0;
  std::size_t loader_delivered_ = 0;
  std::map<std::string, std::vector<std::size_t>> carried_;  // bytes of each member, in all repetitions
  Buffer pinned_;
  std::vector<Registration> locks_;
  Buffer slots_;
};

int run_group_bench(int argc, char** argv) {
  CLI::App app(
      "Devices that receive together, and one that receives over all links, beside the links alone.");
  std::vector<std::string> devices;
  std::size_t mib = 128;
  std::size_t repetitions = 5;
  std::size_t chunk_kib = 0;
  unsigned threads = 0;
  std::string folder = std::filesystem::temp_directory_path().string();
  std::string profiles;
  std::string json_file;
  app.add_option("--devices", devices, "two devices or more")->required();
  app.add_option("--mib", mib, "MiB of a transfer")->check(CLI::Range(1, 1 << 20));
  app.add_option("--repetitions", repetitions, "of each measurement")->check(CLI::Range(1, 1000));
  app.add_option("--chunk-kib", chunk_kib, "KiB of the largest chunk; 0: as the profiles say");
  app.add_option("--threads", threads, "threads of each device's engine; 0: as the profile says")
      ->check(CLI::Range(0, 16));
  app.add_option("--folder", folder, "a folder for a file of as many MiB, which stays in the page cache")
      ->check(CLI::ExistingDirectory);
  app.add_option("--profiles", profiles,
                 "the cache folder with the profiles that `penstock link` stored; without it, and for those "
                 "that are missing there, defaults")
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", json_file, "a file for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    GroupBench bench(devices, mib << 20, repetitions, chunk_kib << 10, threads, folder, profiles);
    for (const std::string& missing : bench.missing_profiles()) {
      fmt::print(stderr, "bench_group: defaults in place of the profile of {}\n", missing);
    }
    bench.run();
    fmt::print("{}, transfers of {}\n\n", fmt::join(devices, " and "), format_bytes(mib << 20));
    print_table(bench.rows);
    fmt::print("\n");
    bench.print_shares();
    for (const std::string& pair : bench.group().unreached()) fmt::print("\n{}\n", pair);
    if (!json_file.empty()) std::ofstream(json_file) << bench.json.dump(2) << '\n';
  } catch (const Error& error) {
    fmt::print(stderr, "bench_group: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run_group_bench(argc, argv); }
