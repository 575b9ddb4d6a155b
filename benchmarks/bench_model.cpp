// The model of a feed against measured feeds: some 70 settings, a consumer that takes a given time. Only
// times are compared here; tests and bench_loader compare bytes. A host whose memory others use, too, changes
// from second to second. So all is done in rounds: each measures the link, and then each feed once. Of a
// setting, the round whose error is in the middle counts. With --measured, the feeds are those that an
// earlier run has measured on a GPU, and its profiles': so a change of the model is tried without one.

#include "random_field.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/link/link_measurement.hpp>
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
#include <memory>
#include <string>
#include <utility>
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
  std::size_t rounds = 3;
  double seconds = 0.3;
  double link_seconds = 15;
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

/// A feed in one round.
struct Compared {
  FeedPrediction model;
  double seconds = 0;  ///< measured, from one batch to the next
  std::string limited_by;
  [[nodiscard]] double error() const { return model.seconds / seconds - 1; }
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

void print_row(const Setting& setting, const Compared& feed, double tolerance) {
  fmt::print("{:>9} {:<11} {:<7} {:>3.0f}% {:>6}  {:>9} {:>9} {:>+5.0f}%{} {}, {}\n",
             format_bytes(setting.sample_bytes), gather_path_name(setting.path),
             setting.widened ? "float32" : "uint8", 100 * setting.resident,
             format_seconds(setting.step_seconds), format_seconds(feed.model.seconds),
             format_seconds(feed.seconds), 100 * feed.error(),
             std::abs(feed.error()) <= tolerance ? " " : "*", feed_limit_name(feed.model.limited_by),
             feed.limited_by);
  std::fflush(stdout);
}

/// The settings, each by the round whose error is in the middle.
class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) { print_heading(); }

  void add(const Setting& setting, std::vector<Compared> rounds) {
    const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
    std::ranges::nth_element(rounds, middle, {}, &Compared::error);
    print_row(setting, *middle, tolerance_);
    errors_.push_back(std::abs(middle->error()));
  }

  void print_errors() {
    if (errors_.empty()) return;
    const auto within = std::ranges::count_if(errors_, [&](double error) { return error <= tolerance_; });
    std::ranges::sort(errors_);
    fmt::print(
        "{} of {} settings within {:.0f} % ({:.0f} %; goal 90 %), median {:.1f} % off, worst {:.0f} %\n",
        within, errors_.size(), 100 * tolerance_,
        100 * static_cast<double>(within) / static_cast<double>(errors_.size()),
        100 * errors_[errors_.size() / 2], 100 * errors_.back());
  }

 private:
  const double tolerance_;
  std::vector<double> errors_;
};

/// The model against an earlier run's measurements.
void compare_with(const std::string& file) {
  std::ifstream in(file);
  const auto run = nlohmann::json::parse(in);
  std::vector<LinkProfile> profiles;
  for (const auto& profile : run.at("profiles")) profiles.push_back(LinkProfile::parse(profile.dump()));
  if (profiles.empty()) throw Error(file + " has no profiles: its run measured nothing");
  Comparison comparison(run.at("tolerance"));
  for (const auto& known : run.at("settings")) {
    const Setting setting{parse_gather_path(known.at("gather").get<std::string>()),
                          known.at("sample_bytes"),
                          known.at("batch"),
                          known.at("step_seconds"),
                          known.at("resident"),
                          known.at("widened")};
    std::vector<Compared> rounds;
    for (std::size_t i = 0; i < profiles.size(); ++i) {
      const auto& measured = known.at("rounds").at(i).at("measured");
      rounds.push_back({predict_feed(profiles[i], DeviceTuning{}, modelled(setting)), measured.at("seconds"),
                        measured.at("limited_by")});
    }
    comparison.add(setting, std::move(rounds));
  }
  comparison.print_errors();
}

/// A setting, its dataset, and what each round found.
struct Examined {
  Setting setting;
  const Dataset* dataset = nullptr;
  std::vector<Compared> rounds;
  std::vector<nlohmann::json> figures;  ///< of each round
};

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        device_(Device::open(arguments.device)),
        tuning_(device_.info().tuning),
        tolerance_(device_.info().in_host_memory ? 0.25 : 0.1) {
    for (const auto& [sample, batch] : {std::pair<std::size_t, std::size_t>{256, 8192},
                                        {kKiB, 4096},
                                        {4 * kKiB, 2048},
                                        {32 * kKiB, 512},
                                        {150528, 256},
                                        {602112, 64}}) {
      const std::size_t samples = std::max(2 * batch, arguments_.mib * kMiB / sample);
      datasets_.push_back(
          std::make_unique<Dataset>(Dataset({make_field("x", DType::uint8, {sample}, samples)})));
      for (const Setting& setting : settings_of(sample, batch)) {
        if (arguments_.gather.empty() || gather_path_name(setting.path) == arguments_.gather) {
          examined_.push_back({setting, datasets_.back().get(), {}, {}});
        }
      }
    }
  }

  void run() {
    for (std::size_t round = 0; round < arguments_.rounds; ++round) {
      profiles_.push_back(profile());
      for (Examined& examined : examined_) compare(examined);
      fmt::print(stderr, "bench_model: round {} of {}\n", round + 1, arguments_.rounds);
    }
  }

  void report() const {
    Comparison comparison(tolerance_);
    for (const Examined& examined : examined_) comparison.add(examined.setting, examined.rounds);
    comparison.print_errors();
    if (arguments_.json.empty()) return;
    nlohmann::json json{{"device", device_.info().name},
                        {"spec", device_.info().spec},
                        {"tolerance", tolerance_},
                        {"profiles", nlohmann::json::array()},
                        {"settings", nlohmann::json::array()}};
    for (const LinkProfile& profile : profiles_) {
      json["profiles"].push_back(nlohmann::json::parse(profile.to_json()));
    }
    for (const Examined& examined : examined_) json["settings"].push_back(to_json(examined));
    std::ofstream(arguments_.json) << json.dump(1) << '\n';
  }

 private:
  [[nodiscard]] LinkProfile profile() const {
    if (arguments_.profile.empty()) {
      LinkMeasurementOptions options;
      options.seconds = arguments_.link_seconds;
      return measure_link(device_, options).profile;
    }
    std::string why;
    if (auto profile = LinkProfile::load(arguments_.profile, device_.info(), &why)) return *profile;
    throw Error(why);
  }

  void compare(Examined& examined) {
    const Setting& setting = examined.setting;
    const FeedPrediction model = predict_feed(profiles_.back(), tuning_, modelled(setting));
    const auto [seconds, account] = measure(*examined.dataset, setting, model.seconds);
    examined.rounds.push_back({model, seconds, std::string(feed_limit_name(account.limited_by()))});
    examined.figures.push_back(figures(model, seconds, account));
  }

  [[nodiscard]] std::pair<double, FeedStatistics> measure(const Dataset& dataset, const Setting& setting,
                                                          double expected) const {
    LoaderOptions options;
    options.batch_size = setting.batch;
    options.shuffle = options.drop_last = true;
    options.gather = setting.path;
    options.residency = {.kind = Residency::Kind::fraction, .fraction = setting.resident};
    if (setting.widened) options.fields = {{.name = "x", .to = DType::float32}};
    options.profile = profiles_.back();
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

  [[nodiscard]] static nlohmann::json figures(const FeedPrediction& model, double seconds,
                                              const FeedStatistics& account) {
    const auto batches = static_cast<double>(std::max<std::uint64_t>(account.batches, 1));
    const auto timed = static_cast<double>(std::max<std::uint64_t>(account.timed_batches, 1));
    return {{"model",
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
             {{"seconds", seconds},
              {"gather_seconds", account.gather_seconds / batches},
              {"slot_wait_seconds", account.slot_wait_seconds / batches},
              {"transfer_seconds", account.transfer_seconds / timed},
              {"kernel_seconds", account.kernel_seconds / timed},
              {"compute_seconds", account.compute_seconds / timed},
              {"stall_seconds", account.stall_seconds / timed},
              {"exposed_transfer_seconds", account.exposed_transfer_seconds / timed},
              {"limited_by", feed_limit_name(account.limited_by())}}}};
  }

  [[nodiscard]] static nlohmann::json to_json(const Examined& examined) {
    const Setting& setting = examined.setting;
    return {{"gather", gather_path_name(setting.path)},
            {"sample_bytes", setting.sample_bytes},
            {"batch", setting.batch},
            {"step_seconds", setting.step_seconds},
            {"resident", setting.resident},
            {"widened", setting.widened},
            {"rounds", examined.figures}};
  }

  const Arguments& arguments_;
  const Device device_;
  const DeviceTuning tuning_;
  const double tolerance_;
  std::vector<std::unique_ptr<Dataset>> datasets_;
  std::vector<Examined> examined_;
  std::vector<LinkProfile> profiles_;  ///< of each round
};

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The model of a feed against measured feeds.");
  app.add_option("--device", arguments.device);
  app.add_option("--profile", arguments.profile,
                 "Link profile. Without it, each round measures the link first");
  app.add_option("--json", arguments.json, "Write each setting's stages here");
  app.add_option("--mib", arguments.mib, "Size of each dataset");
  app.add_option("--rounds", arguments.rounds, "Measurements of each setting")->check(CLI::PositiveNumber);
  app.add_option("--seconds", arguments.seconds, "Time of a setting in each round");
  app.add_option("--link-seconds", arguments.link_seconds,
                 "About the time in which a round measures the link");
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
