#include "feed_fields.hpp"
#include "feed_report.hpp"
#include "feed_run.hpp"
#include "signals.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>

namespace penstock::cli {

namespace {

constexpr int kInterruptedStatus = 130;

template <typename Make>
auto timed(double& seconds, Make&& make) {
  const auto begin = std::chrono::steady_clock::now();
  auto made = make();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return made;
}

/// What the wrong use of an option throws comes out as UsageError.
template <typename Call>
auto checked(Call&& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

Dataset open(const FeedOptions& options, const Environment& environment) {
  OpenOptions open{.split = options.split};
  open.search.assign(options.search.begin(), options.search.end());
  open.search.insert(open.search.end(), environment.dataset_directories.begin(),
                     environment.dataset_directories.end());
  open.file.load_limit = options.load_limit != 0 ? options.load_limit : host_topology().memory_bytes / 4;
  const std::vector<std::filesystem::path> sources(options.sources.begin(), options.sources.end());
  return open_dataset(sources, open);
}

LoaderOptions loader_options(const FeedOptions& options, std::vector<FieldOptions> fields,
                             std::optional<LinkProfile> profile) {
  LoaderOptions loader;
  loader.batch_size = options.batch;
  loader.shuffle = options.shuffle;
  loader.seed = options.seed;
  loader.drop_last = options.drop_last;
  loader.shard = {.rank = options.rank, .world_size = options.world_size, .drop_last = options.drop_last};
  loader.prefetch_depth = options.prefetch;
  loader.residency = checked([&] { return Residency::parse(options.residency); });
  loader.gather = checked([&] { return parse_gather_path(options.gather); });
  loader.fields = std::move(fields);
  loader.narrow = options.narrow;
  loader.device_budget_bytes = options.budget;
  loader.threads = options.threads;
  loader.profile = std::move(profile);
  return loader;
}

std::optional<LinkProfile> find_profile(const FeedOptions& options, const DeviceInfo& device,
                                        const Environment& environment) {
  if (options.profile.empty() && !environment.cache_directory) return std::nullopt;
  return stored_profile(profile_file(options.profile, device, environment), device);
}

/// What is said on standard output before the feed, where that is not for JSON.
void print_plan(const FeedAccount& account) {
  const DeviceInfo& device = account.device;
  fmt::print("{} samples, {}, to {}\n", account.dataset_samples, format_bytes(account.dataset_bytes),
             device.name == device.spec ? device.spec : fmt::format("{} ({})", device.spec, device.name));
  for (const std::string& field : account.fields) fmt::print("  {}\n", field);
  if (!account.profile_measured) {
    fmt::print("The link's ceiling was not measured; `penstock link --device {}` does it.\n", device.spec);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

/// Everything that tells what happened, also where the feed ended early.
void write_account(const FeedAccount& account, const Environment& environment, const Look& page) {
  const FeedOptions& options = account.options;
  if (options.json == "-") {
    fmt::print("{}", feed_json(account));
  } else {
    fmt::print("{}", feed_text(account, page));
    if (!options.json.empty()) write_file(options.json, feed_json(account));
  }
  if (options.report.empty()) return;
  const auto library = chart_library(environment.chart_libraries);
  write_file(options.report, feed_report(account, library));
  std::FILE* out = options.json == "-" ? stderr : stdout;
  if (!library) fmt::print(out, "The report has no pictures: d3 is not here (Debian's package node-d3).\n");
  fmt::print(out, "The report is in {}.\n", options.report);
}

void feed(const Device& device, const Environment& environment, FeedAccount& account, const Look& look) {
  const FeedOptions& options = account.options;
  const Dataset dataset = timed(account.open_seconds, [&] { return open(options, environment); });
  account.dataset_samples = dataset.sample_count();
  account.dataset_bytes = dataset.sample_count() * dataset.sample_bytes();
  const auto fields = field_options(dataset, options.to, options.scale, options.shift);
  auto profile = find_profile(options, device.info(), environment);
  account.profile_measured = profile && profile->measured;
  SignalWatch::check();

  Loader loader = timed(account.setup_seconds, [&] {
    return checked([&] { return Loader(dataset, device, loader_options(options, fields, profile)); });
  });
  std::optional<Verifier> verifier;
  if (options.verify) verifier.emplace(device, dataset, fields, options.batch);
  account.fields = loader.describe();
  SignalWatch::check();
  if (options.json != "-") print_plan(account);

  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  Progress progress(terminal, look);
  run_epochs(loader, verifier ? &*verifier : nullptr, progress, terminal, account);
}

}  // namespace

int run_feed(const FeedOptions& options, const Environment& environment) {
  if (options.rank >= options.world_size) {
    throw UsageError(
        fmt::format("--rank {} is not below --world-size {}.", options.rank, options.world_size));
  }
  const Look look{.unicode = environment.utf8 && !options.ascii, .columns = terminal_columns(STDERR_FILENO)};
  const Look page{.unicode = look.unicode, .columns = terminal_columns(STDOUT_FILENO)};
  const SignalWatch watch;
  // What cannot be written should be known before the feed, not after it.
  if (!options.report.empty()) require_writable(options.report);
  if (!options.json.empty() && options.json != "-") require_writable(options.json);

  const Device device = Device::open(options.device, environment.device);
  FeedAccount account;
  account.options = options;
  account.started = std::time(nullptr);
  account.device = device.info();
  try {
    feed(device, environment, account, look);
  } catch (const std::exception&) {
    if (!account.epochs.empty()) write_account(account, environment, page);
    throw;
  }
  write_account(account, environment, page);
  if (!account.interrupted) return 0;
  fmt::print(stderr, "penstock: interrupted; the account ends there\n");
  return kInterruptedStatus;
}

}  // namespace penstock::cli
