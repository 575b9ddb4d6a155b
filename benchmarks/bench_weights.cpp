// Weights out of a file that is not in the page cache, beside bare reads by as many threads, in one run,
// bytes verified.
//
//   bench_weights --device host --folder /var/tmp
//   bench_weights --device cuda --folder /data --mib 8192 --threads 1 4 16

#include "harness.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/data/save_weights.hpp>
#include <penstock/data/weights.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/load_weights.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <thread>

namespace penstock::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPart = std::size_t{512} << 10;  // of a bare read, as large as penstock's

/// A model of 48 tensors in a file that is removed at the end.
class ModelFile {
 public:
  /// `pad`: bytes of spaces behind the header that lay_out_weights makes, a multiple of 8.
  ModelFile(const fs::path& folder, std::size_t bytes, std::size_t pad)
      : path_(folder / fmt::format("penstock-bench-{}-{}.safetensors", ::getpid(), pad)) {
    std::vector<NewWeight> weights;
    const std::size_t large = bytes / 40 / 4096 * 4096;
    for (std::size_t i = 0; i < 48; ++i) {
      weights.push_back({fmt::format("layers.{}", i), "U8", {i % 6 == 5 ? 8192 : large}});
    }
    WeightFileLayout layout = lay_out_weights(weights, {{"format", "pt"}});
    const std::uint64_t header = layout.head.size() - 8 + pad;
    std::memcpy(layout.head.data(), &header, 8);
    layout.head.append(pad, ' ');
    for (std::size_t& offset : layout.offsets) offset += pad;
    layout.bytes += pad;
    std::mt19937_64 random(1);
    content_.resize(align_up(layout.bytes, 8));
    for (std::size_t i = 0; i < content_.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(content_.data() + i, &word, 8);
    }
    content_.resize(layout.bytes);
    std::memcpy(content_.data(), layout.head.data(), layout.head.size());
    for (std::size_t i = 0; i < weights.size(); ++i) places_[weights[i].name] = layout.offsets[i];
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(content_.data()), static_cast<std::streamsize>(content_.size()));
    if (!out.flush()) throw Error(fmt::format("{} cannot be written", path_.string()));
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(descriptor_);
  }
  ~ModelFile() {
    ::close(descriptor_);
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] std::size_t bytes() const { return content_.size(); }
  /// Has the page cache forget it.
  void make_cold() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

  void verify(const WeightFile& file, std::span<const std::byte> block, const std::string& who) const {
    for (const WeightTensor& tensor : file.tensors()) {
      if (std::memcmp(block.data() + tensor.offset, content_.data() + places_.at(tensor.name),
                      tensor.bytes) != 0) {
        throw Error(fmt::format("{}: tensor '{}' holds other bytes", who, tensor.name));
      }
    }
  }

 private:
  const fs::path path_;
  std::vector<std::byte> content_;
  std::map<std::string, std::size_t> places_;
  int descriptor_ = -1;
};

/// Reads all of a file, a part after the other, by threads that know nothing of each other: to a buffer of
/// each, or to `destination`.
void read_barely(const ModelFile& file, unsigned threads, int flags, std::byte* destination = nullptr) {
  const int descriptor = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw Error("the file system refuses O_DIRECT: choose a --folder on a disk");
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> sum{0};
  std::vector<std::thread> team;
  for (unsigned i = 0; i < threads; ++i) {
    team.emplace_back([&] {
      const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
          static_cast<std::byte*>(std::aligned_alloc(4096, kPart)), &std::free);
      for (std::size_t at = next.fetch_add(kPart); at < file.bytes(); at = next.fetch_add(kPart)) {
        std::byte* const place = destination == nullptr ? buffer.get() : destination + at;
        const ssize_t got = ::pread(descriptor, place, kPart, static_cast<off_t>(at));
        if (got > 0) sum += static_cast<std::size_t>(got);
      }
    });
  }
  for (std::thread& thread : team) thread.join();
  ::close(descriptor);
  if (sum != file.bytes()) throw Error("a bare read failed");
}

class WeightsBench {
 public:
  WeightsBench(const std::string& spec, const ModelFile& file, std::size_t repetitions,
               const std::vector<unsigned>& teams)
      : device_(Device::open(spec)),
        file_(file),
        repetitions_(repetitions),
        teams_(teams),
        engine_(device_),
        pool_(make_device_pool(device_, {.budget_bytes = device_.memory().free})),
        weights_(file.path()),
        there_(pool_.allocate(weights_.bytes())),
        memory_(align_up(file.bytes() + WeightFile::kAlignment * 64, kPart) + 4096),
        block_(memory_.data() + (-reinterpret_cast<std::uintptr_t>(memory_.data()) & 4095),
               weights_.bytes()) {}

  void run() {
    file_.make_cold();
    load(true);  // tells the number of threads
    engine_.copy(block_.data(), there_.data(), block_.size()).synchronize();
    file_.verify(weights_, block_, "load_weights");
    std::ranges::fill(block_, std::byte{0xA5});
    file_.make_cold();
    read_all(true);
    file_.verify(weights_, block_, "read_all");
    for (const bool cold : {true, false}) {
      Contender to_device{cold ? "load_weights, cold" : "load_weights, in the page cache",
                          [this, cold] { load(cold); }};
      Contender to_host{cold ? "read_all into host memory, cold" : "read_all, in the page cache",
                        [this, cold] { read_all(cold); }};
      contenders_.push_back(std::move(to_device));
      contenders_.push_back(std::move(to_host));
    }
    for (const unsigned each : {threads_, team()}) {
      if (std::ranges::find(teams_, each) == teams_.end()) teams_.push_back(each);
    }
    for (const unsigned each : teams_) {
      for (const int flags : {O_DIRECT, 0}) {
        contenders_.push_back(
            {bare_name(flags, each), [this, each, flags] { read_barely(file_, each, flags); }});
      }
    }
    contenders_.push_back({to_memory(), [this] { read_barely(file_, team(), O_DIRECT, block_.data()); }});
    for (std::size_t round = 0; round < repetitions_; ++round) {
      for (Contender& contender : contenders_) {
        if (contender.name.ends_with("page cache")) {
          read_barely(file_, threads_, 0);
        } else {
          file_.make_cold();
        }
        contender.seconds.push_back(time(contender.run));
      }
    }
  }

  void print() const {
    fmt::print("| what | GB/s, median | lowest | highest |\n| --- | --- | --- | --- |\n");
    for (const Contender& contender : contenders_) {
      const Summary summary = contender.summary();
      const auto rate = [&](double seconds) { return static_cast<double>(file_.bytes()) / seconds / kGB; };
      fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} |\n", contender.name, rate(summary.median),
                 rate(summary.maximum), rate(summary.minimum));
    }
    const auto say = [&](const std::string& ours, const std::string& bare) {
      fmt::print("\n{}: {:.1f} % of {} (goal 95 %)", ours, 100 * rate_of(ours) / rate_of(bare), bare);
    };
    say(contenders_[0].name, bare_name(O_DIRECT, threads_));
    say(contenders_[1].name, bare_name(O_DIRECT, team()));
    say(contenders_[1].name, to_memory());
    fmt::print("\n");
  }

  [[nodiscard]] nlohmann::json json() const {
    nlohmann::json json{{"device", device_.info().spec}, {"bytes", file_.bytes()}, {"threads", threads_}};
    for (const Contender& contender : contenders_) json["seconds"][contender.name] = contender.seconds;
    return json;
  }

 private:
  static std::string bare_name(int flags, unsigned team) {
    return fmt::format("bare reads, {}, {} thread{}", flags == 0 ? "buffered" : "O_DIRECT", team,
                       team == 1 ? "" : "s");
  }
  /// Threads of read_all.
  [[nodiscard]] unsigned team() const { return static_cast<unsigned>(device_.host_workers()->threads()); }
  [[nodiscard]] std::string to_memory() const {
    return bare_name(O_DIRECT, team()) + ", to the same memory as read_all";
  }
  [[nodiscard]] double rate_of(const std::string& name) const {
    const auto found = std::ranges::find(contenders_, name, &Contender::name);
    return 1 / found->summary().median;
  }

  /// A file that was opened just now: each chooses anew how it is read.
  void load(bool cold) {
    const WeightFile opened(file_.path());
    const Transfer transfer = load_weights(engine_, opened, there_.data());
    transfer.synchronize();
    threads_ = transfer.report().threads;
    check(opened, cold);
  }

  void read_all(bool cold) {
    const WeightFile opened(file_.path());
    opened.read_all(*device_.host_workers(), block_);
    check(opened, cold);
  }

  static void check(const WeightFile& opened, bool cold) {
    const WeightReads reads = opened.reads();
    if (cold && reads.cached > opened.tensor_bytes() / 20) {
      throw Error("the file stays in the page cache: choose a --folder on a disk");
    }
    if (!cold && reads.cached < opened.tensor_bytes() / 20 * 19) {
      throw Error("the file leaves the page cache: choose fewer --mib");
    }
  }

  const Device device_;
  const ModelFile& file_;
  const std::size_t repetitions_;
  std::vector<unsigned> teams_;
  TransferEngine engine_;
  Pool pool_;
  const WeightFile weights_;
  Buffer there_;
  std::vector<std::byte> memory_;
  const std::span<std::byte> block_;  ///< of it, on a page
  std::vector<Contender> contenders_;
  unsigned threads_ = 0;
};

int run_weights_bench(int argc, char** argv) {
  CLI::App app("Weights out of a file on a disk, beside bare reads of it.");
  std::string device = "auto";
  std::string folder = fs::temp_directory_path();
  std::size_t mib = 1024;
  std::size_t repetitions = 5;
  std::vector<unsigned> teams;
  std::string json_file;
  app.add_option("--device", device, "a device");
  app.add_option("--folder", folder, "a folder on the disk");
  app.add_option("--mib", mib, "MiB of the file")->check(CLI::Range(4, 1 << 20));
  app.add_option("--repetitions", repetitions, "of each measurement")->check(CLI::Range(1, 1000));
  app.add_option("--threads", teams, "bare reads also by so many threads")->check(CLI::Range(1, 256));
  app.add_option("--json", json_file, "a file for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    nlohmann::json json = nlohmann::json::array();
    for (const std::size_t pad : {0, 8}) {
      const ModelFile file(folder, mib << 20, pad);
      WeightsBench bench(device, file, repetitions, teams);
      bench.run();
      fmt::print("{} in 48 tensors, the first {} to {}, {} repetitions in turn\n\n",
                 format_bytes(file.bytes()),
                 pad == 0 ? "at a multiple of 4 KiB as save_safetensors writes," : "8 bytes past one,",
                 device, repetitions);
      bench.print();
      json.push_back(bench.json());
    }
    if (!json_file.empty()) std::ofstream(json_file) << json.dump(2) << '\n';
  } catch (const Error& error) {
    fmt::print(stderr, "bench_weights: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run_weights_bench(argc, argv); }
