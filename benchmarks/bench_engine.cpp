// The engine beside the bare driver (on a GPU) or plain memcpy (on the host device), in one run, bytes
// verified.

#include "foreign_copies.hpp"
#include "harness.hpp"
#include "raw_driver.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

namespace penstock::bench {
namespace {

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(data.data() + i, &word, 8);
  }
  return data;
}

std::string gbps(std::size_t bytes, double seconds) {
  return fmt::format("{:.1f} GB/s", static_cast<double>(bytes) / seconds / kGB);
}

/// Memory at both ends, and the means to check it.
class Bench {
 public:
  Bench(Device device, std::optional<LinkProfile> profile, std::size_t large)
      : device_(std::move(device)),
        engine_(device_, {.profile = std::move(profile)}),
        pinned_pool_(make_pinned_pool(device_)),
        device_pool_(make_device_pool(device_)),
        large_(large),
        source_(random_bytes(large, 1)),
        back_(large),
        pinned_(pinned_pool_.allocate(large)),
        memory_(device_pool_.allocate(large)),
        stream_(device_.create_stream()) {
    std::memcpy(pinned_.data(), source_.data(), large);
    if (!device_.info().in_host_memory) {
      driver_.emplace();
      driver_->use_primary_context();
      driver_->create_stream();
    }
  }

  std::vector<Row> rows;

  void pinned_h2d() {
    std::vector<Contender> race_{
        raw_h2d(large_),
        {"engine", [&] { engine_.copy(memory_.data(), pinned_.data(), large_).synchronize(); }}};
    race(race_, 15);
    verify_device(pinned_.bytes(), "pinned H2D");
    against_raw("pinned H2D, " + format_bytes(large_), race_[1], race_[0], large_, 0.99);
  }

  void pageable_h2d() {
    std::vector<Contender> race_{
        raw_h2d(large_),
        {"engine",
         [&] {
           engine_.copy(memory_.data(), source_.data(), large_, {.path = TransferPath::staged}).synchronize();
         }},
        {"driver, pageable", [&] {
           stream_.copy(memory_.data(), source_.data(), large_, CopyDirection::h2d);
           stream_.synchronize();
         }}};
    poison_device();
    race(race_, 5, 1, 3);
    poison_device();
    race_[1].run();
    verify_device(source_, "pageable H2D");
    against_raw(fmt::format("pageable H2D, {}, {} threads", format_bytes(large_), engine_.threads()),
                race_[1], race_[0], large_, 0.97, &race_[2]);
  }

  void pageable_d2h() {
    std::vector<Contender> race_{
        {"raw pinned",
         [&] {
           if (driver_) {
             driver_->copy_to_host(pinned_.data(), memory_.data(), large_);
             driver_->synchronize();
           } else {
             stream_.copy(pinned_.data(), memory_.data(), large_, CopyDirection::d2h);
             stream_.synchronize();
           }
         }},
        {"engine",
         [&] {
           engine_.copy(back_.data(), memory_.data(), large_, {.path = TransferPath::staged}).synchronize();
         }},
        {"driver, pageable", [&] {
           stream_.copy(back_.data(), memory_.data(), large_, CopyDirection::d2h);
           stream_.synchronize();
         }}};
    race(race_, 5, 1, 3);
    std::fill(back_.begin(), back_.end(), std::byte{0xA5});
    race_[1].run();
    if (back_ != source_) throw Error("pageable D2H brought wrong bytes");
    against_raw(fmt::format("pageable D2H, {}, {} threads", format_bytes(large_), engine_.threads()),
                race_[1], race_[0], large_, 0.90, &race_[2]);
  }

  void small_pieces() {
    constexpr std::size_t kCount = 1000;
    constexpr std::size_t kBytes = 4096;
    std::vector<std::vector<std::byte>> tensors;
    for (std::size_t i = 0; i < kCount; ++i) tensors.push_back(random_bytes(kBytes, 100 + i));
    std::vector<TransferPiece> pieces;
    for (std::size_t i = 0; i < kCount; ++i) {
      pieces.push_back({tensors[i].data(), memory_.data() + i * kBytes, kBytes});
    }
    std::vector<Contender> race_{
        {"1000 pinned asynchronous copies",
         [&] {
           for (std::size_t i = 0; i < kCount; ++i) {
             const std::byte* from = pinned_.data() + i * kBytes;
             if (driver_) {
               driver_->copy_to_device(memory_.data() + i * kBytes, from, kBytes);
             } else {
               stream_.copy(memory_.data() + i * kBytes, from, kBytes, CopyDirection::h2d);
             }
           }
           driver_ ? driver_->synchronize() : stream_.synchronize();
         }},
        {"engine", [&] { engine_.copy_pieces(pieces, CopyDirection::h2d).synchronize(); }}};
    race(race_, 20, 2, 10);
    poison_device();
    race_[1].run();
    std::vector<std::byte> expected;
    for (const auto& tensor : tensors) expected.insert(expected.end(), tensor.begin(), tensor.end());
    verify_device(expected, "packed H2D");
    const double ours = race_[1].summary().median;
    const double theirs = race_[0].summary().median;
    rows.push_back({"1000 pieces of 4 KiB, pageable, to the device", format_seconds(ours),
                    "1000 pinned asynchronous copies " + format_seconds(theirs),
                    fmt::format("{:.1f}x", theirs / ours), "120 µs", ours <= 120e-6});
  }

  void one_small_copy() {
    constexpr std::size_t kBytes = std::size_t{64} * 1024;
    std::vector<Contender> race_{raw_h2d(kBytes), {"engine", [&] {
                                                     engine_
                                                         .copy(memory_.data(), pinned_.data(), kBytes,
                                                               {.source_kind = MemoryKind::pinned,
                                                                .destination_kind = MemoryKind::device})
                                                         .synchronize();
                                                   }}};
    race(race_, 200, 10, 10);
    verify_device(pinned_.bytes().first(kBytes), "one small copy");
    const double extra = race_[1].summary().median - race_[0].summary().median;
    rows.push_back({"one 64 KiB pinned copy", format_seconds(race_[1].summary().median),
                    "driver " + format_seconds(race_[0].summary().median), "+" + format_seconds(extra),
                    "driver + 1 µs", extra <= 1e-6});
  }

  void pinned_pool() {
    constexpr std::size_t kBytes = std::size_t{2} << 30;
    std::vector<Contender> race_{{"driver's allocator",
                                  [&] {
                                    if (driver_) {
                                      driver_->free_pinned(driver_->allocate_pinned(kBytes));
                                    } else {
                                      device_.deallocate_host(device_.allocate_host(kBytes));
                                    }
                                  }},
                                 {"pinned pool", [&] {
                                    Pool pool = make_pinned_pool(device_, {.budget_bytes = kBytes});
                                    const double seconds = time([&] { pool.reserve(kBytes); });
                                    ready_.push_back(seconds);
                                  }}};
    // The pool's time ends when it is ready. It does not include giving the memory back.
    race(race_, 5, 1);
    ready_.erase(ready_.begin());
    race_[1].seconds = ready_;
    const double ours = race_[1].summary().median;
    const double theirs = race_[0].summary().median;
    rows.push_back({"a pinned pool of 2 GiB, ready for use", format_seconds(ours),
                    "driver's allocator " + format_seconds(theirs), fmt::format("{:.1f}x", theirs / ours),
                    "0.10 s", ours <= 0.10});
  }

  /// Another thread of the program copies 51 KB from time to time, beside nothing and beside transfers. Each
  /// goes in parts and in one piece, in turn.
  void manners(double seconds) {
    const auto alone = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const Summary nothing = summarize(foreign_copies(device_, seconds, alone));
    rows.push_back({"a foreign pinned copy of 51 KB, alone", foreign_text(nothing), "", "", "", true});
    beside("pinned, the host waits", seconds, [&](bool whole) {
      engine_.copy(memory_.data(), pinned_.data(), large_, {.whole = whole}).synchronize();
    });
    beside("pageable", seconds, [&](bool whole) {  // as `to_device` sends it: a stream waits
      const CopyOptions options{.path = TransferPath::staged, .whole = whole};
      stream_.wait(engine_.copy(memory_.data(), source_.data(), large_, options));
      stream_.synchronize();
    });
  }

  /// Staged and packed beside plain memcpy with as many threads, which is the ceiling without a GPU.
  void beside_memcpy() {
    HostWorkersOptions options;
    options.threads = engine_.threads();
    HostWorkers team(std::move(options));
    constexpr std::size_t kPart = std::size_t{1} << 20;
    const std::size_t parts = large_ / kPart;
    const auto plain = [&] {
      team.for_each(parts, [&](std::size_t i) {
        std::memcpy(back_.data() + i * kPart, source_.data() + i * kPart, kPart);
      });
    };
    for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
      std::vector<Contender> race_{
          {"memcpy", plain},
          {"engine",
           [&] { engine_.copy(memory_.data(), source_.data(), large_, {.path = path}).synchronize(); }}};
      poison_device();
      race(race_, 15);
      verify_device(source_, "staged");
      Contender& ours = race_[1];
      const double ratio = race_[0].summary().median / ours.summary().median;
      rows.push_back({fmt::format("{} H2D, {}, {} threads", transfer_path_name(path), format_bytes(large_),
                                  engine_.threads()),
                      gbps(large_, ours.summary().median),
                      "memcpy " + gbps(large_, race_[0].summary().median),
                      fmt::format("{:.1f} %", ratio * 100), "90 %", ratio >= 0.90});
    }
  }

 private:
  void beside(const std::string& work, double seconds, const std::function<void(bool whole)>& transfer) {
    constexpr int kRounds = 4;
    struct Way {
      std::vector<double> foreign;
      std::vector<double> transfers;
    };
    Way ways[2];                              // in parts, and whole
    for (const bool whole : {false, true}) {  // memory is there from the first one on
      poison_device();
      transfer(whole);
      verify_device(source_, work);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (const bool whole : {false, true}) {
        Way& way = ways[whole ? 1 : 0];
        const std::vector<double> taken = foreign_copies(
            device_, seconds / kRounds, [&] { way.transfers.push_back(time([&] { transfer(whole); })); });
        way.foreign.insert(way.foreign.end(), taken.begin(), taken.end());
      }
    }
    const auto text = [&](const Way& way) {
      return fmt::format("{}, {}", foreign_text(summarize(way.foreign)),
                         gbps(large_, summarize(way.transfers).median));
    };
    const double p99 = summarize(ways[0].foreign).p99;
    const double share = summarize(ways[1].transfers).median / summarize(ways[0].transfers).median;
    rows.push_back({"beside transfers, " + work, text(ways[0]), "whole: " + text(ways[1]),
                    fmt::format("{:.1f} %", 100 * share), "p99 1 ms, 98 % of the rate",
                    p99 <= 1e-3 && share >= 0.98});
  }

  Contender raw_h2d(std::size_t bytes) {
    return {"raw pinned", [this, bytes] {
              if (driver_) {
                driver_->copy_to_device(memory_.data(), pinned_.data(), bytes);
                driver_->synchronize();
              } else {
                stream_.copy(memory_.data(), pinned_.data(), bytes, CopyDirection::h2d);
                stream_.synchronize();
              }
            }};
  }

  void against_raw(const std::string& work, const Contender& ours, const Contender& raw, std::size_t bytes,
                   double goal, const Contender* other = nullptr) {
    const double ratio = raw.summary().median / ours.summary().median;
    std::string beside = "raw pinned " + gbps(bytes, raw.summary().median);
    if (other != nullptr) beside += ", " + other->name + " " + gbps(bytes, other->summary().median);
    rows.push_back({work, gbps(bytes, ours.summary().median), beside, fmt::format("{:.1f} %", ratio * 100),
                    fmt::format("{:.0f} %", goal * 100), ratio >= goal});
  }

  void poison_device() {
    stream_.fill(memory_.data(), 0xA5, large_);
    stream_.synchronize();
  }

  void verify_device(std::span<const std::byte> expected, const std::string& what) {
    Buffer pinned = pinned_pool_.allocate(expected.size());
    stream_.copy(pinned.data(), memory_.data(), expected.size(), CopyDirection::d2h);
    stream_.synchronize();
    if (std::memcmp(pinned.data(), expected.data(), expected.size()) != 0)
      throw Error(what + " brought wrong bytes");
  }

  Device device_;
  TransferEngine engine_;
  Pool pinned_pool_;
  Pool device_pool_;
  std::size_t large_;
  std::vector<std::byte> source_;
  std::vector<std::byte> back_;
  Buffer pinned_;
  Buffer memory_;
  Stream stream_;
  std::optional<RawDriver> driver_;
  std::vector<double> ready_;
};

int run(int argc, char** argv) {
  CLI::App app{"The engine beside the bare driver, or beside memcpy where there is no GPU"};
  std::string spec = "auto";
  std::string json_file;
  std::string profile_file;
  std::string only = "pinned,pageable,pieces,copy,pool,manners";
  double seconds = 2;
  app.add_option("--device", spec, "Device to measure");
  app.add_option("--json", json_file, "Write the figures here");
  app.add_option("--profile", profile_file, "Link profile to use");
  app.add_option("--only", only, "On a GPU: of these, with commas between; elsewhere manners, or the rest");
  app.add_option("--seconds", seconds, "Of each run of manners");
  CLI11_PARSE(app, argc, argv);

  const Device device = Device::open(spec);
  const bool gpu = !device.info().in_host_memory;
  std::optional<LinkProfile> profile;
  if (!profile_file.empty()) {
    std::string why;
    profile = LinkProfile::load(profile_file, device.info(), &why);
    if (!profile) throw InvalidArgument(fmt::format("profile {} cannot be used: {}", profile_file, why));
  }
  Bench bench(device, profile, kGiB);
  const auto wanted = [&](std::string_view work) { return only.find(work) != std::string::npos; };
  if (only == "manners" || (gpu && wanted("manners"))) bench.manners(seconds);
  if (gpu) {
    if (wanted("pinned")) bench.pinned_h2d();
    if (wanted("pageable")) bench.pageable_h2d();
    if (wanted("pageable")) bench.pageable_d2h();
    if (wanted("pieces")) bench.small_pieces();
    if (wanted("copy")) bench.one_small_copy();
    if (wanted("pool")) bench.pinned_pool();
  } else if (only != "manners") {
    bench.beside_memcpy();
    bench.small_pieces();
  }
  fmt::print("{} ({}), driver {}\n\n", device.info().name, device.info().spec, device.info().driver);
  print_table(bench.rows);
  if (!json_file.empty()) {
    std::ofstream(json_file) << nlohmann::json{{"table", to_json(bench.rows)}}.dump(2) << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_engine: %s\n", error.what());
    return 1;
  }
}
