#include "core/shared/replace_file.hpp"
#include "failures/fails_at_every.hpp"
#include "loader/loader_fixture.hpp"
#include "support/bytes.hpp"
#include "support/device_cases.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/data/save_weights.hpp>
#include <penstock/loader/load_weights.hpp>
#include <penstock/loader/share_dataset.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/transfer/group_engine.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace penstock::testing {

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kRoom = std::size_t{1} << 20;

/// Devices with memory at both ends and a consumer's stream each, and an engine or loader that the work makes
/// when it is first tried.
template <typename Mover>
struct Bench {
  explicit Bench(const std::vector<std::string>& specs) {
    for (const std::string& spec : specs) {
      devices.push_back(open_for_tests(spec));
      pools.push_back(make_pinned_pool(devices.back(), {.segment_bytes = kRoom}));
      pinned.push_back(pools.back().allocate(kRoom));
      pools.push_back(make_device_pool(devices.back(), {.segment_bytes = kRoom}));
      memory.push_back(pools.back().allocate(kRoom));
      streams.push_back(devices.back().create_stream());
    }
  }
  /// Also if the call fails: what is copied stays safe.
  void synchronize(std::size_t device) const {
    try {
      streams[device].synchronize();
    } catch (...) {
      streams[device].synchronize();
      throw;
    }
  }
  /// Appends what lies there, once the stream's work so far is done.
  void read(std::size_t device, const void* there, std::size_t bytes, Bytes& to) const {
    const std::byte* const data = pinned[device].data();
    streams[device].copy(pinned[device].data(), there, bytes, CopyDirection::d2h);
    synchronize(device);
    to.insert(to.end(), data, data + bytes);
  }
  void read(std::size_t device, const DeviceBatch& batch, Bytes& to) const {
    for (std::size_t f = 0; f < batch.field_count(); ++f) {
      read(device, batch.field(f).data, batch.field(f).bytes, to);
    }
  }

  std::vector<Device> devices;
  std::vector<Pool> pools;
  std::vector<Buffer> pinned;
  std::vector<Buffer> memory;
  std::vector<Stream> streams;
  const Bytes source = random_bytes(kRoom / 2, 7);
  Bytes destination = Bytes(kRoom / 2);
  std::optional<Mover> mover;
};

/// Work on such a bench, whose `body` makes the mover and appends what arrived.
template <typename Mover, typename Body>
Scenario on(std::string name, std::vector<std::string> devices, Body body) {
  return {std::move(name), Call::memory, [devices = std::move(devices), body] {
            return [bench = std::make_shared<Bench<Mover>>(devices), body] {
              Bytes arrived;
              body(*bench, arrived);
              return arrived;
            };
          }};
}

const std::vector<std::string> kTwoGpus{"cuda:0", "cuda:1"};

// ---- transfers

using EngineBench = Bench<TransferEngine>;

TransferEngine& engine_of(EngineBench& bench) {
  if (!bench.mover) {
    bench.mover.emplace(bench.devices[0],
                        TransferOptions{.threads = 2, .chunk_bytes = std::size_t{64} << 10, .slots = 2});
  }
  return *bench.mover;
}

void copy_up(EngineBench& bench, TransferPath path, Bytes& arrived) {
  void* const there = bench.memory[0].data();
  engine_of(bench).copy(there, bench.source.data(), bench.source.size(), {.path = path}).synchronize();
  bench.read(0, there, bench.source.size(), arrived);
}
void copy_up_staged(EngineBench& bench, Bytes& arrived) { copy_up(bench, TransferPath::staged, arrived); }
void copy_up_registered(EngineBench& bench, Bytes& arrived) {
  const Registration lock(bench.devices[0], bench.source.data(), bench.source.size());
  copy_up(bench, TransferPath::direct, arrived);
}

/// Pieces of several sizes. Their destinations lie side by side.
std::vector<TransferPiece> pieces_of(const std::byte* source, std::byte* destination) {
  std::vector<TransferPiece> pieces;
  std::size_t at = 0;
  for (std::size_t bytes = 1; bytes < 20'000; bytes = bytes * 3 + 1) {
    pieces.push_back({source + at, destination + at, bytes});
    at += (bytes + 255) / 256 * 256;
  }
  return pieces;
}

void copy_up_packed(EngineBench& bench, Bytes& arrived) {
  const auto pieces = pieces_of(bench.source.data(), bench.memory[0].data());
  engine_of(bench).copy_pieces(pieces, CopyDirection::h2d, {.path = TransferPath::packed}).synchronize();
  for (const TransferPiece& piece : pieces) bench.read(0, piece.destination, piece.bytes, arrived);
}

void put_source_on_device(EngineBench& bench) {
  std::memcpy(bench.pinned[0].data(), bench.source.data(), bench.source.size());
  bench.streams[0].copy(bench.memory[0].data(), bench.pinned[0].data(), bench.source.size(),
                        CopyDirection::h2d);
  bench.synchronize(0);
}
void copy_down_staged(EngineBench& bench, Bytes& arrived) {
  put_source_on_device(bench);
  engine_of(bench)
      .copy(bench.destination.data(), bench.memory[0].data(), bench.source.size(),
            {.path = TransferPath::staged})
      .synchronize();
  arrived = bench.destination;
}
void copy_down_packed(EngineBench& bench, Bytes& arrived) {
  put_source_on_device(bench);
  const auto pieces = pieces_of(bench.memory[0].data(), bench.destination.data());
  engine_of(bench).copy_pieces(pieces, CopyDirection::d2h, {.path = TransferPath::packed}).synchronize();
  for (const TransferPiece& piece : pieces) {
    arrived.insert(arrived.end(), piece.destination, piece.destination + piece.bytes);
  }
}

using GroupBench = Bench<GroupEngine>;

GroupEngine& engine_of(GroupBench& bench) {
  if (!bench.mover) {
    bench.mover.emplace(DeviceGroup(bench.devices),
                        GroupOptions{.threads = 2, .chunk_bytes = std::size_t{64} << 10, .slots = 2});
  }
  return *bench.mover;
}
void feed_once(GroupBench& bench, Bytes& arrived) {
  const std::array places{bench.memory[0].data(), bench.memory[1].data()};
  engine_of(bench).feed_once(places, bench.source.data(), bench.source.size()).synchronize();
  for (const std::size_t i : {0, 1}) bench.read(i, places[i], bench.source.size(), arrived);
}
void relay(GroupBench& bench, Bytes& arrived) {
  void* const place = bench.memory[0].data();
  engine_of(bench).relay(0, place, bench.source.data(), bench.source.size()).synchronize();
  bench.read(0, place, bench.source.size(), arrived);
}

// ---- loaders

Dataset dataset(bool made_by_a_function) {
  constexpr std::size_t kSamples = 60;
  const auto image = random_field("image", DType::uint8, {7, 9}, kSamples, 1);
  return Dataset({made_by_a_function ? as_callback(image) : image,
                  random_field("label", DType::int64, {}, kSamples, 2),
                  random_field("point", DType::float32, {3}, kSamples, 3)});
}

LoaderOptions options_of(GatherPath gather, const char* residency) {
  return {.batch_size = 16,
          .shuffle = true,
          .residency = Residency::parse(residency),
          .gather = gather,
          .fields = {{.name = "image", .to = DType::float16, .scale = {0.5F}}},
          .copy_limit_bytes = std::size_t{1} << 20,
          .threads = 2};
}

/// One epoch of a loader.
Scenario epoch(std::string name, std::string device, GatherPath gather, const char* residency) {
  return on<Loader>(std::move(name), {std::move(device)}, [=](Bench<Loader>& bench, Bytes& arrived) {
    if (bench.mover) {
      bench.mover->start_epoch(0);
    } else {
      bench.mover.emplace(dataset(gather == GatherPath::host), bench.devices[0],
                          options_of(gather, residency));
    }
    while (const auto batch = bench.mover->next(bench.streams[0])) bench.read(0, *batch, arrived);
  });
}

/// One epoch of a loader of a group, or of one that feeds the first member over the links of both.
void group_epoch(Bench<Loader>& bench, bool relayed, Bytes& arrived) {
  const LoaderOptions options = options_of(GatherPath::automatic, "none");
  if (bench.mover) {
    bench.mover->start_epoch(0);
  } else {
    const DeviceGroup group(bench.devices);
    bench.mover.emplace(dataset(true), relayed ? Destination::relayed(group) : Destination(group), options);
  }
  while (const auto batches = bench.mover->next(std::span(bench.streams).first(relayed ? 1 : 2))) {
    for (std::size_t i = 0; i < batches->size(); ++i) bench.read(i, (*batches)[i], arrived);
  }
}

// ---- files and pages

const std::vector<NewWeight> kWeights{
    {"small", "BF16", {3}}, {"large", "F32", {70, 1001}}, {"last", "U8", {70'001}}};

/// What a .safetensors file of these weights holds.
Bytes weight_file() {
  const WeightFileLayout layout = lay_out_weights(kWeights);
  Bytes content = random_bytes(layout.bytes, 9);
  std::memcpy(content.data(), layout.head.data(), layout.head.size());
  return content;
}

/// A folder that holds one file at each end of a save: the earlier one, or the new one.
struct SavedFile {
  test::TempDirectory folder;
  const Bytes earlier = random_bytes(1000, 1);
  const std::filesystem::path file = folder.write("weights.safetensors", earlier);

  /// Throws if another file lies beside it.
  [[nodiscard]] Bytes content() const {
    const FailuresPaused pause;
    const std::filesystem::directory_iterator files(folder.path());
    if (std::distance(begin(files), end(files)) != 1) throw std::logic_error("a file lies beside it");
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    const std::string all = text.str();
    const auto* const data = reinterpret_cast<const std::byte*>(all.data());
    return {data, data + all.size()};
  }
};

Scenario save() {
  return {"Save", Call::memory, [] {
            return [saved = std::make_shared<SavedFile>()] {
              const Bytes content = weight_file();
              try {
                replace_file(saved->file, content);
              } catch (...) {
                const Bytes there = saved->content();
                if (there != saved->earlier && there != content) throw std::logic_error("half a file");
                throw;
              }
              return saved->content();
            };
          }};
}

struct WeightsOnDisk {
  test::TempDirectory folder;
  const std::filesystem::path file = folder.write("weights.safetensors", weight_file());
};

Scenario load() {
  return on<TransferEngine>("Load", {"cuda:0"},
                            [disk = std::make_shared<WeightsOnDisk>()](EngineBench& bench, Bytes& arrived) {
                              for (const WeightFile& file : open_weights({disk->file})) {
                                load_weights(engine_of(bench), file, bench.memory[0].data()).synchronize();
                                bench.read(0, bench.memory[0].data(), file.bytes(), arrived);
                              }
                            });
}

/// Makes a dataset for two processes, and comes for it as the second. Allocations do not fail: fields are
/// described by a tree of nlohmann-json, whose destructor needs memory and ends the process without.
Scenario share() {
  return {"Share", Call::driver, [] {
            static int number = 0;
            return [key = fmt::format("failures of {} {}", getpid(), ++number)] {
              const ShareOptions options{.key = key, .processes = 2};
              const auto make = [] { return MadeDataset{dataset(false)}; };
              const SharedDataset first = share_dataset(options, make);
              const SharedDataset second = share_dataset(options, make);
              Bytes arrived;
              for (const SharedDataset* shared : {&first, &second}) {
                for (std::size_t f = 0; f < shared->dataset.field_count(); ++f) {
                  const auto memory = shared->dataset.memory(f);
                  arrived.insert(arrived.end(), memory.begin(), memory.end());
                }
              }
              return arrived;
            };
          }};
}

/// A device, and all that a program first does with it.
Scenario open() {
  return {"Open", Call::memory, [] {
            return [] {
              EngineBench bench({"cuda:0"});
              Bytes arrived;
              copy_up_staged(bench, arrived);
              return arrived;
            };
          }};
}

/// A team of threads: when one of them cannot start, others are there.
Scenario team() {
  return {"Team", Call::memory, [] {
            return [] {
              HostWorkers workers({.threads = 4, .on_start = {}});
              Bytes arrived(100);
              workers.for_each(arrived.size(),
                               [&](std::size_t i) { arrived[i] = static_cast<std::byte>(i); });
              return arrived;
            };
          }};
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all{
      open(),
      team(),
      on<TransferEngine>("StagedUp", {"cuda:0"}, &copy_up_staged),
      on<TransferEngine>("StagedUpOnHost", {"host"}, &copy_up_staged),
      on<TransferEngine>("Registered", {"cuda:0"}, &copy_up_registered),
      on<TransferEngine>("PackedUp", {"cuda:0"}, &copy_up_packed),
      on<TransferEngine>("StagedDown", {"cuda:0"}, &copy_down_staged),
      on<TransferEngine>("PackedDown", {"cuda:0"}, &copy_down_packed),
      on<GroupEngine>("FeedOnce", kTwoGpus, &feed_once),
      on<GroupEngine>("Relay", kTwoGpus, &relay),
      epoch("HostGather", "cuda:0", GatherPath::host, "none"),
      epoch("HostGatherOnHost", "host", GatherPath::host, "none"),
      epoch("ZeroCopy", "cuda:0", GatherPath::zero_copy, "none"),
      epoch("CopyEngine", "cuda:0", GatherPath::copy_engine, "none"),
      epoch("Resident", "cuda:0", GatherPath::automatic, "0.5"),
      on<Loader>("GroupLoader", kTwoGpus,
                 [](auto& bench, auto& arrived) { group_epoch(bench, false, arrived); }),
      on<Loader>("RelayLoader", kTwoGpus,
                 [](auto& bench, auto& arrived) { group_epoch(bench, true, arrived); }),
      save(),
      load(),
      share(),
  };
  return all;
}

}  // namespace penstock::testing
