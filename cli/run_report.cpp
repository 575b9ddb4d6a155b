#include "run_report.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace penstock::cli {

namespace {

using run::Count;
using run::SizeFigures;
using run::Timing;

constexpr const char* kDirections[] = {"to the device", "to the host"};
constexpr const char* kDirectionNames[] = {"H2D", "D2H"};

struct ReasonText {
  const char* name;
  const char* text;
};
/// In the order of run::Reason.
constexpr ReasonText kReasonTexts[] = {
    {"small", "smaller than 1 MiB"},
    {"first", "the first of their size"},
    {"slower", "of a size at which the driver is as fast"},
    {"other_memory", "between other kinds of memory"},
    {"form", "of rows apart, of arrays or in a batch with others"},
    {"context", "of a context that is not the device's primary one"},
    {"capture", "in a stream capture"},
    {"busy", "beside copies of several other streams"},
    {"ending", "at the end of the program, in a forked child or within another copy"},
    {"refused", "that penstock could not make"},
};
static_assert(std::size(kReasonTexts) == run::kReasons);

void add_to(Count& sum, const Count& more) {
  sum.calls += more.calls;
  sum.bytes += more.bytes;
}

void add_to(Timing& sum, const Timing& more) {
  add_to(sum.all, more.all);
  add_to(sum.timed, more.timed);
  sum.nanoseconds += more.nanoseconds;
  sum.best = std::max(sum.best, more.best);
}

/// Bytes a second of the timed copies; 0 if there are none.
double rate_of(const Timing& timing) {
  if (timing.nanoseconds == 0) return 0;
  return static_cast<double>(timing.timed.bytes) * 1e9 / static_cast<double>(timing.nanoseconds);
}

double seconds_saved_by(const SizeFigures& size) {
  const double driver = rate_of(size.driver);
  const double taken = rate_of(size.taken);
  if (driver == 0 || taken == 0) return 0;
  const auto bytes = static_cast<double>(size.taken.all.bytes);
  return bytes / driver - bytes / taken;
}

std::size_t first_bytes(std::size_t size) { return run::kSmallestCopy << (2 * size); }

std::string size_text(std::size_t size) {
  const std::string from = format_bytes(first_bytes(size));
  if (size + 1 == run::kSizeClasses) return fmt::format("{} and more", from);
  return fmt::format("{} to {}", from, format_bytes(first_bytes(size + 1)));
}

std::string copies_text(const Count& count) {
  return fmt::format("{} {} ({})", count.calls, count.calls == 1 ? "copy" : "copies",
                     format_bytes(count.bytes));
}

std::string rate_text(const Timing& timing) {
  const double rate = rate_of(timing);
  return rate > 0 ? format_gbps(rate) : "an unknown rate";
}

std::string loader_text(const FedLoader& loader) {
  const std::string name = fmt::format("the DataLoader of {}", loader.place);
  if (loader.fed == 0) return fmt::format("left {} alone: {}", name, loader.why);
  return fmt::format("fed {} of {} batches of {} to {}{}", loader.fed, loader.batches, name, loader.device,
                     loader.why.empty() ? "" : fmt::format(", then left it alone: {}", loader.why));
}

nlohmann::json count_json(const Count& count) { return {{"calls", count.calls}, {"bytes", count.bytes}}; }

nlohmann::json timing_json(const Timing& timing) {
  nlohmann::json value = count_json(timing.all);
  const double rate = rate_of(timing);
  value["gbps"] = rate > 0 ? nlohmann::json(rate / kGB) : nlohmann::json();
  return value;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FedLoader, place, device, why, batches, fed)

RunReport::RunReport(const std::filesystem::path& folder, bool feeds) : feeds_(feeds) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") add_loaders(entry.path());
    run::Figures process;
    std::ifstream in(entry.path(), std::ios::binary);
    if (in.read(reinterpret_cast<char*>(&process), sizeof process) && process.format == run::Figures::kFormat)
      add(process);
  }
}

void RunReport::add(const run::Figures& process) {
  ++processes_;
  for (std::size_t way = 0; way < std::size(kDirections); ++way) {
    for (std::size_t size = 0; size < run::kSizeClasses; ++size) {
      add_to(figures_.sizes[way][size].driver, process.sizes[way][size].driver);
      add_to(figures_.sizes[way][size].taken, process.sizes[way][size].taken);
    }
  }
  for (std::size_t reason = 0; reason < run::kReasons; ++reason)
    add_to(figures_.passed_on[reason], process.passed_on[reason]);
}

void RunReport::add_loaders(const std::filesystem::path& file) {
  std::ifstream in(file);
  const nlohmann::json value = nlohmann::json::parse(in, nullptr, false);
  if (!value.is_array()) return;
  for (const nlohmann::json& loader : value) loaders_.push_back(loader);
}

bool RunReport::has_nothing_to_gain() const {
  return taken().calls == 0 && std::ranges::none_of(loaders_, &FedLoader::fed);
}

Count RunReport::taken() const {
  Count sum;
  for (const auto& way : figures_.sizes) {
    for (const SizeFigures& size : way) add_to(sum, size.taken.all);
  }
  return sum;
}

double RunReport::seconds_saved() const {
  double seconds = 0;
  for (const auto& way : figures_.sizes) {
    for (const SizeFigures& size : way) seconds += seconds_saved_by(size);
  }
  return seconds;
}

std::string RunReport::text() const {
  std::string text;
  const auto line = [&text](const std::string& words) { text += fmt::format("penstock run: {}\n", words); };
  for (std::size_t way = 0; way < std::size(kDirections); ++way) {
    for (std::size_t size = 0; size < run::kSizeClasses; ++size) {
      const SizeFigures& figures = figures_.sizes[way][size];
      if (figures.taken.all.calls == 0) continue;
      line(fmt::format("took {} of {} {} at {}; the driver gave {}", copies_text(figures.taken.all),
                       size_text(size), kDirections[way], rate_text(figures.taken),
                       rate_text(figures.driver)));
    }
  }
  std::vector<std::string> passed_on;
  for (std::size_t reason = 0; reason < run::kReasons; ++reason) {
    const Count& count = figures_.passed_on[reason];
    if (count.calls != 0)
      passed_on.push_back(fmt::format("{} {}", copies_text(count), kReasonTexts[reason].text));
  }
  if (!passed_on.empty()) line(fmt::format("passed on {}", fmt::join(passed_on, "; ")));
  if (feeds_ && loaders_.empty()) line("saw no DataLoader of PyTorch");
  for (const FedLoader& loader : loaders_) line(loader_text(loader));
  if (has_nothing_to_gain()) {
    line("This program has nothing to gain.");
  } else if (const double seconds = seconds_saved(); seconds > 0) {
    line(fmt::format("saved about {}", format_seconds(seconds)));
  }
  return text;
}

std::string RunReport::json(const std::vector<std::string>& command, int status) const {
  nlohmann::json sizes = nlohmann::json::array();
  for (std::size_t way = 0; way < std::size(kDirections); ++way) {
    for (std::size_t size = 0; size < run::kSizeClasses; ++size) {
      const SizeFigures& figures = figures_.sizes[way][size];
      if (figures.taken.all.calls + figures.driver.all.calls == 0) continue;
      sizes.push_back({{"direction", kDirectionNames[way]},
                       {"from_bytes", first_bytes(size)},
                       {"driver", timing_json(figures.driver)},
                       {"taken", timing_json(figures.taken)}});
    }
  }
  nlohmann::json passed_on;
  for (std::size_t reason = 0; reason < run::kReasons; ++reason)
    passed_on[kReasonTexts[reason].name] = count_json(figures_.passed_on[reason]);
  return nlohmann::json{{"schema", "penstock-run/1"},
                        {"command", command},
                        {"exit_status", status},
                        {"processes", processes_},
                        {"nothing_to_gain", has_nothing_to_gain()},
                        {"seconds_saved", seconds_saved()},
                        {"taken", count_json(taken())},
                        {"sizes", std::move(sizes)},
                        {"passed_on", std::move(passed_on)},
                        {"loaders", feeds_ ? nlohmann::json(loaders_) : nlohmann::json()}}
             .dump(2) +
         "\n";
}

}  // namespace penstock::cli
