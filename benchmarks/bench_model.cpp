// The model of a feed against measured feeds: some 70 settings, a consumer that takes a given time. Only
// times are compared here; tests and bench_loader compare bytes. With --measured, the feeds are those that an
// earlier run has measured on a GPU, and its profile's: so a change of the model is tried without one.

#include "random_field.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/transfer/feed_model.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {
namespace {

struct Arguments {
  std::string device = "auto";
  std::string profile;
  std::string json;
  std::string measured;
  std::string gather;  ///< only such feeds, if it is not empty
  std::size_t mib = 1024;
  double seconds = 0.8;
};

/// One feed.
struct Setting {
  GatherPath path = GatherPath::host;
  std::size_t sample_bytes = 0;
  std::size_t batch = 0;
  double step_seconds = 0;
  double resident = 0;
  bool widened = false;  ///< uint8 is delivered as float32
};

std::vector<Setting> settings_of(std::size_t sample, std::size_t batch) {
  constexpr std::size_t kLeastCopied = 32 * kKiB;
  std::vector<Setting> settings;
  for (const GatherPath path : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    if (path == GatherPath::copy_engine && sample < kLeastCopied) continue;
    settings.push_back({path, sample, batch, 0.2e-3, 0, false});
    settings.push_back({path, sample, batch, 0.2e-3, 0, true});
    settings.push_back({path, sample, batch, 0.2e-3, 0.5, false});
    settings.push_back({path, sample, batch, 2e-3, 0, false});
  }
  if (sample == 256) settings.push_back({GatherPath::zero_copy, sample, batch, 0.2e-3, 1, true});
  if (sample == 4 * kKiB) settings.push_back({GatherPath::zero_copy, sample, batch, 0.2e-3, 0.75, true});
  if (sample == 150528) {
    settings.push_back({GatherPath::zero_copy, sample, batch, 0.2e-3, 0.9, false});
    settings.push_back({GatherPath::zero_copy, sample, batch, 0.2e-3, 1, true});
    settings.push_back({GatherPath::host, sample, batch, 5e-3, 0.25, true});
    settings.push_back({GatherPath::copy_engine, sample, batch, 50e-3, 0, true});
  }
  if (sample == 602112) {
    settings.push_back({GatherPath::zero_copy, sample, batch, 20e-3, 0, true});
    settings.push_back({GatherPath::host, sample, batch, 10e-3, 0, false});
  }
  return settings;
}

struct Measured {
  double seconds = 0;  ///< from one batch to the next
  FeedStatistics account;
};

ModelledFeed modelled(const Setting& setting) {
  ModelledFeed feed;
  feed.fields = {{.path = setting.path,
                  .sample_bytes = setting.sample_bytes,
                  .delivered_bytes = (setting.widened ? 4 : 1) * setting.sample_bytes,
                  .converts = setting.widened,
                  .resident = setting.resident}};
  feed.batch = setting.batch;
  feed.step_seconds = setting.step_seconds;
  return feed;
}

void print_heading() {
  fmt::print("{:>9} {:<11} {:<7} {:>4} {:>6}  {:>9} {:>9} {:>6}  {}\n", "sample", "gather", "as", "here",
             "step", "model", "measured", "", "limited by: model, measured");
}

void print_row(const Setting& setting, const FeedPrediction& model, double seconds, const std::string& limit,
               double tolerance) {
  const double error = model.seconds / seconds - 1;
  fmt::print("{:>9} {:<11} {:<7} {:>3.0f}% {:>6}  {:>9} {:>9} {:>+5.0f}%{} {}, {}\n",
             format_bytes(setting.sample_bytes), gather_path_name(setting.path),
             setting.widened ? "float32" : "uint8", 100 * setting.resident,
             format_seconds(setting.step_seconds), format_seconds(model.seconds), format_seconds(seconds),
             100 * error, std::abs(error) <= tolerance ? " " : "*", feed_limit_name(model.limited_by), limit);
  std::fflush(stdout);
}

void print_errors(std::vector<double> errors, double tolerance) {
  const auto within = std::ranges::count_if(errors, [&](double error) { return error <= tolerance; });
  std::ranges::sort(errors);
  fmt::print("{} of {} settings within {:.0f} % ({:.0f} %; goal 90 %), median {:.1f} % off, worst {:.0f} %\n",
             within, errors.size(), 100 * tolerance,
             100 * static_cast<double>(within) / static_cast<double>(errors.size()),
             100 * errors[errors.size() / 2], 100 * errors.back());
}

/// The model against an earlier run's measurements.
void compare_with(const std::string& file) {
  std::ifstream in(file);
  const auto run = nlohmann::json::parse(in);
  const LinkProfile profile = LinkProfile::parse(run.at("profile").dump());
  const double tolerance = run.at("tolerance");
  std::vector<double> errors;
  print_heading();
  for (const auto& known : run.at("settings")) {
    const Setting setting{parse_gather_path(known.at("gather").get<std::string>()),
                          known.at("sample_bytes"),
                          known.at("batch"),
                          known.at("step_seconds"),
                          known.at("resident"),
                          known.at("widened")};
    const FeedPrediction model = predict_feed(profile, DeviceTuning{}, modelled(setting));
    const double seconds = known.at("measured").at("seconds");
    errors.push_back(std::abs(model.seconds / seconds - 1));
    print_row(setting, model, seconds, known.at("measured").at("limited_by"), tolerance);
  }
  print_errors(errors, tolerance);
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        device_(Device::open(arguments.device)),
        tuning_(device_.info().tuning),
        profile_(load_profile()),
        tolerance_(device_.info().in_host_memory ? 0.25 : 0.1) {}

  void run() {
    print_heading();
    for (const auto& [sample, batch] : {std::pair<std::size_t, std::size_t>{256, 8192},
                                        {kKiB, 4096},
                                        {4 * kKiB, 2048},
                                        {32 * kKiB, 512},
                                        {150528, 256},
                                        {602112, 64}}) {
      const std::size_t samples = std::max(2 * batch, arguments_.mib * kMiB / sample);
      const Dataset dataset({make_field("x", DType::uint8, {sample}, samples)});
      for (const Setting& setting : settings_of(sample, batch)) {
        if (arguments_.gather.empty() || gather_path_name(setting.path) == arguments_.gather) {
          compare(dataset, setting);
        }
      }
    }
  }

  void report() const {
    print_errors(errors_, tolerance_);
    if (arguments_.json.empty()) return;
    const auto within = std::ranges::count_if(errors_, [&](double error) { return error <= tolerance_; });
    nlohmann::json json{
        {"device", device_.info().name}, {"spec", device_.info().spec},
        {"tolerance", tolerance_},       {"within", within},
        {"settings", settings_},         {"profile", nlohmann::json::parse(profile_.to_json())}};
    std::ofstream(arguments_.json) << json.dump(1) << '\n';
  }

 private:
  LinkProfile load_profile() const {
    if (!arguments_.profile.empty()) {
      std::string why;
      if (auto profile = LinkProfile::load(arguments_.profile, device_.info(), &why)) return *profile;
      fmt::print(stderr, "bench_model: {}\n", why);
    }
    return LinkProfile::defaults(device_.info());
  }

  void compare(const Dataset& dataset, const Setting& setting) {
    const FeedPrediction model = predict_feed(profile_, tuning_, modelled(setting));
    const Measured measured = measure(dataset, setting, model.seconds);
    errors_.push_back(std::abs(model.seconds / measured.seconds - 1));
    add(setting, model, measured);
    print_row(setting, model, measured.seconds, std::string(feed_limit_name(measured.account.limited_by())),
              tolerance_);
  }

  Measured measure(const Dataset& dataset, const Setting& setting, double expected) {
    LoaderOptions options;
    options.batch_size = setting.batch;
    options.shuffle = options.drop_last = true;
    options.gather = setting.path;
    options.residency = {.kind = Residency::Kind::fraction, .fraction = setting.resident};
    if (setting.widened) options.fields = {{.name = "x", .to = DType::float32}};
    options.profile = profile_;
    Loader loader(dataset, device_, options);
    const Stream stream = device_.create_stream();
    Event begin = device_.create_event(EventTiming::on);
    Event end = device_.create_event(EventTiming::on);
    const auto steps = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        auto batch = loader.next(stream);
        if (!batch) batch = loader.next(stream);
        if (!batch) throw Error("the loader brought nothing");
        stream.occupy(setting.step_seconds);
      }
    };
    constexpr std::size_t kWarmUp = 12;
    constexpr double kFewest = 24;
    const auto count = static_cast<std::size_t>(std::clamp(arguments_.seconds / expected, kFewest, 4000.0));
    // No synchronization in between: it would leave batches ahead that are not made in the measured time.
    steps(kWarmUp);
    begin.record(stream);
    steps(count);
    end.record(stream);
    stream.synchronize();
    return {end.seconds_since(begin) / static_cast<double>(count), loader.stats()};
  }

  void add(const Setting& setting, const FeedPrediction& model, const Measured& measured) {
    const FeedStatistics& account = measured.account;
    const auto batches = static_cast<double>(std::max<std::uint64_t>(account.batches, 1));
    const auto timed = static_cast<double>(std::max<std::uint64_t>(account.timed_batches, 1));
    settings_.push_back({{"gather", gather_path_name(setting.path)},
                         {"sample_bytes", setting.sample_bytes},
                         {"batch", setting.batch},
                         {"step_seconds", setting.step_seconds},
                         {"resident", setting.resident},
                         {"widened", setting.widened},
                         {"model",
                          {{"seconds", model.seconds},
                           {"gather_seconds", model.gather_seconds},
                           {"batch_seconds", model.batch_seconds},
                           {"pacing_seconds", model.pacing_seconds},
                           {"transfer_seconds", model.transfer_seconds},
                           {"kernel_seconds", model.kernel_seconds},
                           {"stall_seconds", model.stall_seconds},
                           {"exposed_transfer_seconds", model.exposed_transfer_seconds},
                           {"limited_by", feed_limit_name(model.limited_by)}}},
                         {"measured",
                          {{"seconds", measured.seconds},
                           {"gather_seconds", account.gather_seconds / batches},
                           {"slot_wait_seconds", account.slot_wait_seconds / batches},
                           {"transfer_seconds", account.transfer_seconds / timed},
                           {"kernel_seconds", account.kernel_seconds / timed},
                           {"compute_seconds", account.compute_seconds / timed},
                           {"stall_seconds", account.stall_seconds / timed},
                           {"exposed_transfer_seconds", account.exposed_transfer_seconds / timed},
                           {"limited_by", feed_limit_name(account.limited_by())}}}});
  }

  const Arguments& arguments_;
  const Device device_;
  const DeviceTuning tuning_;
  const LinkProfile profile_;
  const double tolerance_;
  std::vector<double> errors_;
  std::vector<nlohmann::json> settings_;
};

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The model of a feed against measured feeds.");
  app.add_option("--device", arguments.device);
  app.add_option("--profile", arguments.profile, "Link profile");
  app.add_option("--json", arguments.json, "Write each setting's stages here");
  app.add_option("--mib", arguments.mib, "Size of each dataset");
  app.add_option("--seconds", arguments.seconds, "Time of each setting");
  app.add_option("--gather", arguments.gather, "Only feeds that gather so")
      ->check(CLI::IsMember({"host", "zero-copy", "copy-engine"}));
  app.add_option("--measured", arguments.measured, "An earlier run's --json: compare the model with it");
  CLI11_PARSE(app, argc, argv);
  if (!arguments.measured.empty()) return compare_with(arguments.measured), 0;
  Bench bench(arguments);
  bench.run();
  bench.report();
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_model: {}\n", error.what());
    return 1;
  }
}
