#include "cli/shared/output.hpp"
#include "cli/shared/signals.hpp"
#include "commands.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/data/weights.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace penstock::cli {

namespace {

using nlohmann::json;
using LoadClock = std::chrono::steady_clock;

/// What a load came to.
struct Loaded {
  std::vector<WeightFile> files;
  std::size_t tensors = 0;
  std::size_t bytes = 0;       ///< of the tensors
  double seconds = 0;          ///< from opening the files until the tensors are on the device
  unsigned threads = 0;        ///< that read
  double reading_seconds = 0;  ///< summed over threads
  WeightReads reads;           ///< of all files
  bool link_is_measured = false;
  double link_seconds = 0;  ///< that the link needs for the bytes

  [[nodiscard]] double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  /// The share of the time for which the threads read.
  [[nodiscard]] double reading_share() const {
    return seconds > 0 && threads > 0 ? std::min(1.0, reading_seconds / (seconds * threads)) : 0;
  }
  [[nodiscard]] double link_share() const { return seconds > 0 ? std::min(1.0, link_seconds / seconds) : 0; }
  [[nodiscard]] const char* limited_by() const {
    if (link_share() > reading_share()) return "link";
    return reads.direct + reads.buffered > reads.cached ? "disk" : "reading";
  }
};

TransferEngine open_engine(const LoadOptions& options, const Environment& environment,
                           const OutputFile& output) {
  const Device device = Device::open(options.device, environment.device);
  TransferOptions how;
  if (!options.profile.empty() || environment.cache_directory) {
    const auto file = profile_file(options.profile, device.info(), environment);
    output.keep_off(file, "the link profile");
    how.profile = stored_profile(file, device.info());
  }
  return TransferEngine(device, std::move(how));
}

Loaded load(TransferEngine& engine, const std::vector<std::filesystem::path>& paths) {
  Loaded loaded;
  const auto begin = LoadClock::now();
  loaded.files = open_weights(paths);
  Pool memory = make_device_pool(engine.device(), {.budget_bytes = engine.device().memory().free});
  std::vector<Buffer> blocks;
  std::vector<Transfer> transfers;
  for (const WeightFile& file : loaded.files) {
    SignalWatch::check();
    loaded.tensors += file.tensors().size();
    loaded.bytes += file.tensor_bytes();
    if (file.bytes() == 0) continue;
    blocks.push_back(memory.allocate(file.bytes()));
    const auto read = [file](std::size_t offset, std::span<std::byte> bytes) {
      SignalWatch::check();
      file.read(offset, bytes);
    };
    transfers.push_back(engine.fill(blocks.back().data(), file.bytes(), read));
  }
  try {
    for (const Transfer& transfer : transfers) transfer.synchronize();
  } catch (...) {
    const auto failure = std::current_exception();
    for (const Transfer& transfer : transfers) transfer.cancel();
    for (const Transfer& transfer : transfers) {
      try {
        transfer.synchronize();
      } catch (...) {  // it no longer touches its destination
      }
    }
    std::rethrow_exception(failure);
  }
  loaded.seconds = std::chrono::duration<double>(LoadClock::now() - begin).count();
  for (const Transfer& transfer : transfers) {
    const TransferReport report = transfer.report();
    loaded.threads = std::max(loaded.threads, report.threads);
    loaded.reading_seconds += report.host_copy_seconds;
  }
  for (const WeightFile& file : loaded.files) {
    const WeightReads reads = file.reads();
    loaded.reads.cached += reads.cached;
    loaded.reads.direct += reads.direct;
    loaded.reads.buffered += reads.buffered;
  }
  loaded.link_is_measured = engine.profile().measured;
  const double ceiling = engine.profile().ceiling(CopyDirection::h2d);
  loaded.link_seconds = ceiling > 0 ? static_cast<double>(loaded.bytes) / ceiling : 0;
  return loaded;
}

json load_value(const Loaded& loaded, const std::string& device) {
  json value{{"device", device},
             {"tensors", loaded.tensors},
             {"bytes", loaded.bytes},
             {"seconds", loaded.seconds},
             {"bytes_per_second", loaded.rate()},
             {"threads", loaded.threads},
             {"reading_share", loaded.reading_share()},
             {"link_share", loaded.link_share()},
             {"link_measured", loaded.link_is_measured},
             {"limited_by", loaded.limited_by()},
             {"read",
              {{"cached", loaded.reads.cached},
               {"direct", loaded.reads.direct},
               {"buffered", loaded.reads.buffered}}},
             {"files", json::array()}};
  for (const WeightFile& file : loaded.files) {
    json tensors = json::array();
    for (const WeightTensor& tensor : file.tensors()) {
      tensors.push_back(
          {{"name", tensor.name}, {"type", tensor.type}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
    }
    value["files"].push_back({{"file", file.name()},
                              {"bytes", file.tensor_bytes()},
                              {"block_bytes", file.bytes()},
                              {"tensors", std::move(tensors)}});
  }
  return value;
}

std::string count_text(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// Where the bytes were, and how they were read.
std::string reads_text(const WeightReads& reads) {
  std::vector<std::string> parts;
  const auto add = [&](std::uint64_t bytes, const char* from) {
    if (bytes != 0) parts.push_back(fmt::format("{} from {}", format_bytes(bytes), from));
  };
  add(reads.cached, "memory (the page cache)");
  add(reads.direct, "the disk, past the page cache (O_DIRECT)");
  add(reads.buffered, "the disk, through the page cache");
  return parts.empty() ? "" : fmt::format("read {}\n", fmt::join(parts, "; "));
}

std::string load_text(const Loaded& loaded, const std::string& device) {
  const std::string_view limit = loaded.limited_by();
  std::string text;
  for (const WeightFile& file : loaded.files) {
    text += fmt::format("{}: {}, {}\n", file.name(), count_text(file.tensors().size(), "tensor"),
                        format_bytes(file.tensor_bytes()));
  }
  text += fmt::format("{}, {} to {} in {}: {} GB/s\n", count_text(loaded.tensors, "tensor"),
                      format_bytes(loaded.bytes), device, format_seconds(loaded.seconds),
                      format_rate(loaded.rate()));
  text += fmt::format(
      "limited by {}: the threads read for {:.0f} % of the time, and the link needs {:.0f} % of it{}\n",
      limit == "reading" ? "reading" : fmt::format("the {}", limit), 100 * loaded.reading_share(),
      100 * loaded.link_share(),
      loaded.link_is_measured
          ? ""
          : fmt::format(" if it is as assumed; `penstock link --device {}` measures it", device));
  return text + reads_text(loaded.reads);
}

}  // namespace

int run_load(const LoadOptions& options, const Environment& environment) {
  OutputFile output("--json", options.json);
  const std::vector<std::filesystem::path> paths(options.files.begin(), options.files.end());
  for (const auto& path : paths) output.keep_off(path, "the weights");
  TransferEngine engine = open_engine(options, environment, output);
  const std::string& device = engine.device().info().spec;
  const SignalWatch watch;
  const Loaded loaded = load(engine, paths);
  if (output)
    output.write(load_value(loaded, device).dump(2, ' ', true, json::error_handler_t::replace) + "\n");
  if (!output.is_standard_output()) print(load_text(loaded, device));
  return 0;
}

}  // namespace penstock::cli
