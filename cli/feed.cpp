#include "cli/shared/output.hpp"
#include "cli/shared/signals.hpp"
#include "feed_fields.hpp"
#include "feed_run.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
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

/// Turns the error of a wrong option into UsageError.
template <typename Call>
auto checked(Call&& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

LoaderOptions loader_options(const FeedOptions& options, std::vector<FieldOptions> fields,
                             std::optional<LinkProfile> profile) {
  LoaderOptions loader;
  loader.batch_size = options.batch;
  loader.shuffle = options.shuffle;
  loader.prefetch_depth = options.prefetch;
  loader.residency = checked([&] { return Residency::parse(options.residency); });
  loader.gather = checked([&] { return parse_gather_path(options.gather); });
  loader.fields = std::move(fields);
  loader.device_budget_bytes = options.budget;
  loader.threads = options.threads;
  loader.profile = std::move(profile);
  return loader;
}

/// The files that a feed reads.
struct Inputs {
  std::vector<std::filesystem::path> files;
  std::filesystem::path profile;  ///< empty if there is no directory for one
};

Inputs find_inputs(const FeedOptions& options, const DeviceInfo& device, const Environment& environment) {
  Inputs inputs{.files = dataset_files({options.sources.begin(), options.sources.end()}), .profile = {}};
  if (!options.profile.empty() || environment.cache_directory) {
    inputs.profile = profile_file(options.profile, device, environment);
  }
  return inputs;
}

/// The files that a feed writes. Checked before the feed, so that an unwritable one does not waste it.
struct Outputs {
  Outputs(const FeedOptions& options, const Inputs& inputs)
      : json("--json", options.json), report("--report", options.report) {
    report.keep_off(options.json, "the file of --json");
    for (OutputFile* file : {&json, &report}) {
      for (const auto& input : inputs.files) file->keep_off(input, "the dataset");
      file->keep_off(inputs.profile, "the link profile");
    }
  }

  OutputFile json;
  OutputFile report;
};

/// Prints the plan on standard output before the feed, unless JSON goes there.
void print_plan(const FeedAccount& account) {
  const DeviceInfo& device = account.device;
  std::string text = fmt::format(
      "{} samples, {}, to {}\n", account.dataset_samples, format_bytes(account.dataset_bytes),
      device.name == device.spec ? device.spec : fmt::format("{} ({})", device.spec, device.name));
  for (const std::string& field : account.fields) text += fmt::format("  {}\n", field);
  if (!account.profile_measured) {
    text += fmt::format("The link's ceiling is not known; `penstock link --device {}` measures it.\n",
                        device.spec);
  }
  print(text + "\n");
}

/// The text that is printed at the end.
std::string account_text(const FeedAccount& account, bool report) {
  std::string text = account.options.json == "-" ? "" : feed_text(account);
  if (report) text += fmt::format("The report is in {}.\n", account.options.report);
  return text;
}

/// Writes JSON, the report and the printed text, also if the feed ended early or one of them cannot be
/// written. The terminal comes last, so that a blocked one does not keep files from being written.
void write_account(const FeedAccount& account, Outputs& outputs) {
  bool report = false;
  const auto write_report = [&] {
    if (!outputs.report) return;
    outputs.report.write(feed_report(account));
    report = true;
  };
  const auto tell = [&] {
    const std::string text = account_text(account, report);
    outputs.json.is_standard_output() ? say(text) : print(text);
  };
  run_all({[&] { outputs.json.write(feed_json(account)); }, write_report, tell});
}

void feed(const Device& device, const Inputs& inputs, FeedAccount& account) {
  const FeedOptions& options = account.options;
  const FileOptions in_memory{.load_limit = options.load_limit != 0 ? options.load_limit
                                                                    : host_topology().memory_bytes / 4};
  const Dataset dataset = timed(account.open_seconds, [&] { return open_dataset(inputs.files, in_memory); });
  account.dataset_samples = dataset.sample_count();
  account.dataset_bytes = dataset.sample_count() * dataset.sample_bytes();
  const auto fields = field_options(dataset, options.to);
  std::optional<LinkProfile> profile;
  if (!inputs.profile.empty()) {
    profile = stored_profile(inputs.profile, device.info(), &account.profile_ignored);
  }
  account.profile_measured = profile && profile->measured;
  SignalWatch::check();

  Loader loader = timed(account.setup_seconds, [&] {
    return checked([&] { return Loader(dataset, device, loader_options(options, fields, profile)); });
  });
  std::optional<Verifier> verifier;
  if (options.verify) verifier.emplace(device, dataset, loader.plan());
  account.fields = loader.describe();
  SignalWatch::check();
  if (options.json != "-") print_plan(account);

  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  Progress progress(terminal, terminal_columns(STDERR_FILENO));
  run_epochs(loader, verifier ? &*verifier : nullptr, progress, terminal, account);
}

}  // namespace

int run_feed(const FeedOptions& options, const Environment& environment) {
  const SignalWatch watch;
  const Device device = Device::open(options.device, environment.device);
  const Inputs inputs = find_inputs(options, device.info(), environment);
  Outputs outputs(options, inputs);

  FeedAccount account;
  account.options = options;
  account.started = std::time(nullptr);
  account.device = device.info();
  try {
    feed(device, inputs, account);
  } catch (const std::exception&) {
    if (!account.epochs.empty()) {
      try {
        write_account(account, outputs);
      } catch (const std::exception& also) {
        say(fmt::format("penstock: {}\n", also.what()));
      }
    }
    throw;
  }
  try {
    write_account(account, outputs);
  } catch (const Interrupted&) {
    say("penstock: interrupted; the account was not written completely\n");
    return kInterruptedStatus;
  }
  if (!account.interrupted) return 0;
  say("penstock: interrupted; the account ends there\n");
  return kInterruptedStatus;
}

}  // namespace penstock::cli
