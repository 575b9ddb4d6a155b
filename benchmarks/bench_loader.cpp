// The loader on in-memory datasets, with each batch's bytes verified. compare.py has PyTorch's DataLoader
// beside it.

#include "foreign_copies.hpp"
#include "harness.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <thread>

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;

struct Settings {
  std::string device = "auto";
  std::string profile;
  std::string json;
  std::size_t images = 16384;
  double seconds = 2;  // of each measured run
  std::string only = "images,resident,first-batch,manners";
};

constexpr std::size_t kFirstBatchBytes = std::size_t{2500} * 1000 * 1000;
constexpr std::size_t kResidentBytes = std::size_t{4} << 30;

// Random bytes, one field of `count` samples. Pages are touched by several threads.
FieldReaderPtr make_field(std::string name, DType dtype, Shape shape, std::size_t count) {
  Field field{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  const std::size_t words = count * field.sample_bytes() / 8;
  auto values = std::make_shared<std::unique_ptr<std::uint64_t[]>>(new std::uint64_t[words]);
  std::vector<std::thread> threads;
  const std::size_t team = std::max(1U, std::thread::hardware_concurrency());
  for (std::size_t t = 0; t < team; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t + 1);
      for (std::size_t i = words * t / team; i < words * (t + 1) / team; ++i) (*values)[i] = random();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return read_array(std::move(field), std::as_bytes(std::span(values->get(), words)), values);
}

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), device_(Device::open(settings.device)) {
    if (!settings_.profile.empty()) {
      std::string why;
      profile_ = LinkProfile::load(settings_.profile, device_.info(), &why);
      if (!profile_) fmt::print(stderr, "bench_loader: {}\n", why);
    }
  }

  std::vector<Row> rows;

  [[nodiscard]] bool on_gpu() const { return !device_.info().in_host_memory; }

  void images() {
    const Dataset dataset({make_field("images", DType::uint8, {3, 224, 224}, settings_.images)});
    const Fed plain = feed(dataset, {.batch_size = 256, .shuffle = true, .seed = 1});
    add("images 3x224x224 uint8, shuffled, batch 256",
        fmt::format("{:.1f} GB/s, {:.0f} images/s", plain.delivered_gbps, plain.samples_per_second), "", "",
        "", true);
    const Fed host =
        feed(dataset, {.batch_size = 256, .shuffle = true, .seed = 1, .gather = GatherPath::host});
    add("the same, host gather", fmt::format("{:.1f} GB/s", host.delivered_gbps), "", "", "", true);
    const double cpu = plain.cpu_seconds / (static_cast<double>(plain.bytes) / kGB);
    add("CPU time per GB fed, zero-copy", fmt::format("{:.4f} s", cpu), "", "", on_gpu() ? "0.01 s" : "",
        !on_gpu() || cpu < 0.01);
  }

  void resident() {
    const double bandwidth = device_bandwidth();
    for (const auto& [name, elements] : {std::pair{"256 B", 64}, {"4 KiB", 1024}, {"147 KiB", 37632}}) {
      const std::size_t sample = static_cast<std::size_t>(elements) * 4;
      const std::size_t count = kResidentBytes / sample;
      const Dataset dataset({make_field("x", DType::float32, {static_cast<std::size_t>(elements)}, count)});
      const std::uint64_t batch = std::max<std::size_t>(1, kResidentBytes / 32 / sample);
      const Fed fed =
          feed(dataset, {.batch_size = batch, .shuffle = true, .residency = {Residency::Kind::all}});
      const double moved = 2 * fed.delivered_gbps;
      add(fmt::format("resident, samples of {}, batches of {}", name, format_bytes(batch * sample)),
          fmt::format("{:.0f} GB/s read and written", moved),
          fmt::format("device copy {:.0f} GB/s", bandwidth), fmt::format("{:.0f} %", 100 * moved / bandwidth),
          "70 %", moved >= 0.7 * bandwidth);
    }
  }

  void first_batch() {
    const std::size_t sample = 150528;
    const Dataset dataset({make_field("images", DType::uint8, {3, 224, 224}, kFirstBatchBytes / sample)});
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      seconds.push_back(time([&] {
        Loader loader(dataset, device_, {.batch_size = 256, .shuffle = true, .profile = profile_});
        const Stream stream = device_.create_stream();
        const auto batch = loader.next(stream);
        stream.synchronize();
      }));
    }
    const double median = summarize(seconds).median;
    add(fmt::format("time to first batch, {} in memory", format_bytes(kFirstBatchBytes)),
        fmt::format("{:.3f} s", median), fmt::format("the first of 3: {:.3f} s", seconds.front()), "",
        "0.25 s", median <= 0.25);
  }

  /// Another thread of the program copies 51 KB from time to time, beside nothing and beside a loader.
  void manners() {
    const Dataset dataset({make_field("images", DType::uint8, {3, 224, 224}, settings_.images)});
    const Summary alone = foreign_copies([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    add("a foreign pinned copy of 51 KB, alone", foreign_text(alone), "", "", "", true);
    Loader loader(dataset, device_, {.batch_size = 256, .shuffle = true, .profile = profile_});
    const Stream stream = device_.create_stream();
    std::size_t bytes = 0;
    double seconds = 0;
    const Summary foreign = foreign_copies([&] {
      seconds += time([&] {
        const auto batch = loader.next(stream);
        if (batch) bytes += batch->field(0).bytes;
      });
    });
    stream.synchronize();
    add("beside a loader at full speed", foreign_text(foreign),
        fmt::format("{:.1f} GB/s fed", static_cast<double>(bytes) / seconds / kGB), "", "p99 1 ms",
        foreign.p99 <= 1e-3);
  }

 private:
  struct Fed {
    double seconds = 0;
    std::size_t bytes = 0;
    double delivered_gbps = 0;
    double samples_per_second = 0;
    double cpu_seconds = 0;
  };

  Fed feed(const Dataset& dataset, LoaderOptions options) {
    options.profile = profile_;
    Loader loader(dataset, device_, options);
    const Stream stream = device_.create_stream();
    verify(loader, dataset, stream);
    Fed fed;
    std::uint64_t samples = 0;
    const double cpu = process_cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    while (elapsed() < settings_.seconds) {
      while (const auto batch = loader.next(stream)) {
        samples += batch->size();
        for (std::size_t f = 0; f < batch->field_count(); ++f) fed.bytes += batch->field(f).bytes;
      }
    }
    stream.synchronize();
    fed.seconds = elapsed();
    fed.cpu_seconds = process_cpu_seconds() - cpu;
    fed.delivered_gbps = static_cast<double>(fed.bytes) / fed.seconds / kGB;
    fed.samples_per_second = static_cast<double>(samples) / fed.seconds;
    for (const std::string& line : loader.describe()) fmt::print(stderr, "  {}\n", line);
    fmt::print(stderr, "    {:.2f} GB/s, {:.0f} samples/s; {}\n", fed.delivered_gbps, fed.samples_per_second,
               loader.stats().sentence());
    return fed;
  }

  /// Checks one epoch, and poisons each batch after reading it, so that old bytes in a slot would show.
  void verify(Loader& loader, const Dataset& dataset, const Stream& stream) {
    std::uint64_t samples = 0;
    std::vector<std::byte> expected;
    Pool pool = make_pinned_pool(device_, {.segment_bytes = std::size_t{1} << 20});
    Buffer pinned;
    while (const auto batch = loader.next(stream)) {
      samples += batch->size();
      const DeviceField& field = batch->field(0);
      expected.resize(field.bytes);
      if (pinned.size() < field.bytes) {
        pinned.release();
        pinned = pool.allocate(field.bytes);
      }
      stream.copy(pinned.data(), field.data, field.bytes, CopyDirection::d2h);
      stream.fill(field.data, 0xA5, field.bytes);
      dataset.gather(0, batch->indices(), expected);
      stream.synchronize();
      if (std::memcmp(pinned.data(), expected.data(), field.bytes) != 0)
        throw Error("the loader brought wrong bytes");
      if (batch->index() >= 64) break;
    }
    if (samples == 0) throw Error("the loader brought nothing");
    loader.start_epoch(1);
  }

  Summary foreign_copies(const std::function<void()>& work) {
    return summarize(bench::foreign_copies(device_, settings_.seconds, work));
  }

  double device_bandwidth() {
    const std::size_t bytes = kResidentBytes / 2;
    Pool pool = make_device_pool(device_);
    const Buffer from = pool.allocate(bytes);
    const Buffer to = pool.allocate(bytes);
    const Stream stream = device_.create_stream();
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      const double one = time([&] {
        stream.copy(to.data(), from.data(), bytes, CopyDirection::d2d);
        stream.synchronize();
      });
      if (i > 1) seconds.push_back(one);
    }
    return 2 * static_cast<double>(bytes) / summarize(seconds).median / kGB;
  }

  void add(std::string work, std::string measured, std::string beside, std::string ratio, std::string goal,
           bool met) {
    rows.push_back(
        {std::move(work), std::move(measured), std::move(beside), std::move(ratio), std::move(goal), met});
  }

  const Settings settings_;
  const Device device_;
  std::optional<LinkProfile> profile_;
};

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app("The loader on in-memory datasets.");
  app.add_option("--device", settings.device);
  app.add_option("--profile", settings.profile, "Link profile");
  app.add_option("--json", settings.json, "Write the figures here");
  app.add_option("--images", settings.images);
  app.add_option("--seconds", settings.seconds, "Least time of each run");
  app.add_option("--only", settings.only,
                 "Of images, resident, first-batch and manners, with commas between");
  CLI11_PARSE(app, argc, argv);
  Bench bench(settings);
  const auto wanted = [&](std::string_view work) { return settings.only.find(work) != std::string::npos; };
  if (wanted("images")) bench.images();
  if (wanted("resident") && bench.on_gpu()) bench.resident();
  if (wanted("first-batch") && bench.on_gpu()) bench.first_batch();
  if (wanted("manners")) bench.manners();
  print_table(bench.rows);
  if (!settings.json.empty()) {
    std::ofstream(settings.json) << nlohmann::json{{"table", to_json(bench.rows)}}.dump(2) << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_loader: {}\n", error.what());
    return 1;
  }
}
