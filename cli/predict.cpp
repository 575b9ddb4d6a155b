#include "cli/shared/output.hpp"
#include "commands.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/feed_model.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using nlohmann::json;

TransferPath parse_path(const std::string& name) {
  for (const TransferPath path :
       {TransferPath::automatic, TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    if (transfer_path_name(path) == name) return path;
  }
  throw InvalidArgument(fmt::format("unknown path '{}'; use automatic, direct, staged or packed", name));
}

MemoryKind parse_kind(const char* option, const std::string& name) {
  try {
    return parse_memory_kind(name);
  } catch (const InvalidArgument&) {
    throw UsageError(
        fmt::format("{}: '{}' is unknown; use pageable, pinned, registered or device", option, name));
  }
}

/// Turns the error of a wrong option into UsageError.
template <typename Parse>
auto checked(const char* option, const Parse& parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

/// The device, its profile, and where the answer goes.
struct Question {
  Question(const PredictOptions& options, const Environment& environment)
      : output("--json", options.json), info(Device::open(options.device, environment.device).info()) {
    if (!options.verdict.empty()) output.keep_off(options.verdict, "the verdict");
    std::optional<LinkProfile> stored;
    if (!options.profile.empty() || environment.cache_directory) {
      const auto file = profile_file(options.profile, info, environment);
      output.keep_off(file, "the link profile");
      stored = stored_profile(file, info);
    }
    profile = stored ? *std::move(stored) : LinkProfile::defaults(info);
  }

  int answer(const json& value, const std::string& text) {
    if (output) output.write(value.dump(2, ' ', true, json::error_handler_t::replace) + "\n");
    if (output.is_standard_output()) return 0;
    print(text);
    print(profile.measured
              ? fmt::format("from the link profile of {}\n", profile.measured_at)
              : fmt::format(
                    "from careful defaults: this link is not measured; run `penstock link --device {}`\n",
                    info.spec));
    return 0;
  }

  OutputFile output;
  DeviceInfo info;
  LinkProfile profile;
};

/// The one field of the feed; its path may be `automatic`.
ModelledField parse_field(const PredictOptions& options) {
  const std::string& stored_name = options.from.empty() ? "uint8" : options.from;
  const DType stored = checked("--from", [&] { return parse_dtype(stored_name); });
  const DType delivered =
      options.to.empty() ? stored : checked("--to", [&] { return parse_dtype(options.to); });
  if (!can_widen(stored, delivered)) {
    throw UsageError(
        fmt::format("--to {}: {} cannot become {} without loss.", options.to, stored_name, options.to));
  }
  if (options.sample_bytes % dtype_bytes(stored) != 0) {
    throw UsageError(fmt::format("--samples: {} bytes are no whole number of {} values.",
                                 options.sample_bytes, stored_name));
  }
  const Residency residency = checked("--residency", [&] { return Residency::parse(options.residency); });
  if (residency.kind == Residency::Kind::automatic) {
    throw UsageError("--residency auto: the dataset's size is not known here; name a fraction.");
  }
  ModelledField field;
  field.path = checked("--gather", [&] { return parse_gather_path(options.gather); });
  field.sample_bytes = options.sample_bytes;
  field.delivered_bytes = options.sample_bytes / dtype_bytes(stored) * dtype_bytes(delivered);
  field.converts = stored != delivered;
  field.resident = residency.kind == Residency::Kind::all ? 1 : residency.fraction;
  field.in_sequence = !options.shuffle;
  return field;
}

/// As a loader chooses for samples in memory that can be locked.
GatherPath choose_gather(const Question& question, const ModelledField& field, std::size_t batch) {
  const GatherRates rates =
      gather_rates(question.profile, question.info.tuning, field.sample_bytes, batch, field.in_sequence);
  if (question.info.batched_copies && copies_pay(rates)) return GatherPath::copy_engine;
  return kernels_pay(rates) ? GatherPath::zero_copy : GatherPath::host;
}

/// What is around the feed.
struct Surroundings {
  std::size_t batch = 256;
  double step_seconds = 0;
  ModelledLoader loader;  ///< that the feed wraps
};

Surroundings read_verdict(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(fmt::format("{} cannot be read: {}.", file, std::strerror(errno)));
  try {
    const json verdict = json::parse(in);
    const json& stages = verdict.at("stages");
    const auto seconds = [](const json& value) { return value.is_null() ? 0.0 : value.get<double>(); };
    ModelledLoader loader;
    loader.fetch_seconds = seconds(stages.at("fetch"));
    loader.collate_seconds = seconds(stages.at("collate"));
    const double made = loader.fetch_seconds + loader.collate_seconds;
    const json& busy = verdict.at("busy_seconds");
    if (!busy.is_null()) loader.waiting_seconds = std::max(0.0, made - busy.get<double>());
    loader.receive_seconds = seconds(verdict.at("receive_seconds"));
    loader.workers = verdict.at("workers").at("configured").get<unsigned>();
    loader.processors = verdict.at("workers").at("processors").get<unsigned>();
    static_cast<void>(predict_loader(loader));
    const double samples = std::clamp(verdict.at("samples_per_batch").get<double>(), 1.0, 1e12);
    return {static_cast<std::size_t>(std::lround(samples)), seconds(stages.at("consumer")), loader};
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("{} is not a loader's verdict ({}). Let `penstock doctor --loader FILE.py:NAME "
                    "--json {}` write one.",
                    file, error.what(), file));
  }
}

Surroundings parse_surroundings(const PredictOptions& options) {
  Surroundings around = options.verdict.empty() ? Surroundings{} : read_verdict(options.verdict);
  if (options.batch != 0) around.batch = static_cast<std::size_t>(options.batch);
  if (options.step_ms) around.step_seconds = *options.step_ms / 1000;
  return around;
}

/// What numbers of workers would give: seconds of a batch of the feed.
struct WorkersCurve {
  std::map<unsigned, double> seconds;
  unsigned pays = 0;  ///< the smallest number within 5 % of the best
};

/// Doubles the number of workers until that gains nothing, or until there are 1024.
WorkersCurve predict_workers(const Question& question, ModelledFeed feed) {
  constexpr double kEnough = 0.95;
  constexpr unsigned kMostPredicted = 1024;
  WorkersCurve curve;
  const auto predict = [&](unsigned workers) {
    feed.loader.workers = workers;
    const double seconds = predict_feed(question.profile, question.info.tuning, feed).seconds;
    return curve.seconds[workers] = seconds;
  };
  double best = std::min({predict(feed.loader.workers), predict(0), predict(1)});
  double halved = curve.seconds[1];
  for (unsigned workers = 2; workers <= kMostPredicted; workers *= 2) {
    const double seconds = predict(workers);
    best = std::min(best, seconds);
    if (seconds > kEnough * halved) break;
    halved = seconds;
  }
  const auto pays =
      std::ranges::find_if(curve.seconds, [&](const auto& each) { return kEnough * each.second <= best; });
  curve.pays = pays->first;
  return curve;
}

std::string workers_text(const WorkersCurve& curve, const ModelledFeed& feed) {
  std::string text = fmt::format("\n  {:<10}{:>15}{:>12}\n", "workers", "a batch every", "samples/s");
  for (const auto& [workers, seconds] : curve.seconds) {
    std::vector<const char*> marks;
    if (workers == feed.loader.workers) marks.push_back("given");
    if (workers == curve.pays) marks.push_back("pays");
    text += fmt::format("  {:<10}{:>15}{:>12.0f}{}{}\n", workers, format_seconds(seconds),
                        static_cast<double>(feed.batch) / seconds, marks.empty() ? "" : "   ",
                        fmt::join(marks, ", "));
  }
  return text + "\n";
}

json workers_json(const WorkersCurve& curve, const ModelledFeed& feed) {
  json predicted = json::array();
  for (const auto& [workers, seconds] : curve.seconds) {
    predicted.push_back({{"workers", workers},
                         {"seconds", seconds},
                         {"samples_per_second", static_cast<double>(feed.batch) / seconds}});
  }
  return {{"given", feed.loader.workers},
          {"pays", curve.pays},
          {"processors", feed.loader.processors},
          {"predicted", std::move(predicted)}};
}

std::string feed_text(const ModelledFeed& feed, const FeedPrediction& batch, const std::string& device) {
  const ModelledField& field = feed.fields.front();
  std::string text =
      fmt::format("{} samples of {} a batch, {} gather, to {}: a batch every {}, {:.0f} samples/s\n",
                  feed.batch, format_bytes(field.sample_bytes), gather_path_name(field.path), device,
                  format_seconds(batch.seconds), static_cast<double>(feed.batch) / batch.seconds);
  const auto add = [&](const char* name, double seconds, const std::string& more) {
    if (seconds > 0) text += fmt::format("  {:<17}{}{}\n", name, format_seconds(seconds), more);
  };
  const double over_link =
      static_cast<double>(feed.batch) * (1 - field.resident) * static_cast<double>(field.sample_bytes);
  add("your step", batch.step_seconds, "");
  add("waiting for data", batch.stall_seconds,
      fmt::format(", {:.1f} % of the time", 100 * batch.stall_seconds / batch.seconds));
  add("loader", batch.loader_seconds, "");
  add("host gather", batch.gather_seconds, "");
  add("transfer", batch.transfer_seconds,
      fmt::format(", {} GB/s", format_rate(over_link / batch.transfer_seconds)));
  add("device gather", batch.kernel_seconds, "");
  add("cost of a batch", batch.batch_seconds, "");
  add("wait for parts", batch.pacing_seconds, "");
  return text + fmt::format("limited by: {}\n", feed_limit_label(batch.limited_by));
}

int predict_feed_of(const PredictOptions& options, const Environment& environment) {
  ModelledField field = parse_field(options);
  Question question(options, environment);
  const Surroundings around = parse_surroundings(options);
  if (field.path == GatherPath::automatic) field.path = choose_gather(question, field, around.batch);
  const ModelledFeed feed{.fields = {field},
                          .batch = around.batch,
                          .step_seconds = around.step_seconds,
                          .loader = around.loader,
                          .prefetch_depth = options.prefetch,
                          .threads = options.threads};
  const FeedPrediction batch = predict_feed(question.profile, question.info.tuning, feed);
  json value{{"device", question.info.spec},
             {"sample_bytes", field.sample_bytes},
             {"delivered_bytes", field.delivered_bytes},
             {"batch", feed.batch},
             {"gather", gather_path_name(field.path)},
             {"resident", field.resident},
             {"seconds", batch.seconds},
             {"samples_per_second", static_cast<double>(feed.batch) / batch.seconds},
             {"step_seconds", batch.step_seconds},
             {"stall_seconds", batch.stall_seconds},
             {"exposed_transfer_seconds", batch.exposed_transfer_seconds},
             {"loader_seconds", batch.loader_seconds},
             {"gather_seconds", batch.gather_seconds},
             {"transfer_seconds", batch.transfer_seconds},
             {"kernel_seconds", batch.kernel_seconds},
             {"batch_seconds", batch.batch_seconds},
             {"pacing_seconds", batch.pacing_seconds},
             {"limited_by", feed_limit_name(batch.limited_by)},
             {"measured", question.profile.measured}};
  std::string text = feed_text(feed, batch, question.info.spec);
  if (!options.verdict.empty()) {
    const WorkersCurve curve = predict_workers(question, feed);
    value["workers"] = workers_json(curve, feed);
    text += workers_text(curve, feed);
  }
  return question.answer(value, text);
}

}  // namespace

int run_predict(const PredictOptions& options, const Environment& environment) {
  if (options.sample_bytes != 0) return predict_feed_of(options, environment);
  const std::string from = options.from.empty() ? "pageable" : options.from;
  const std::string to = options.to.empty() ? "device" : options.to;
  const TransferKinds kinds{parse_kind("--from", from), parse_kind("--to", to)};
  TransferPath path = parse_path(options.path);
  Question question(options, environment);
  const LinkProfile& profile = question.profile;
  if (path == TransferPath::automatic) path = profile.choose_path(options.bytes, options.pieces, kinds);
  const double seconds = profile.predict(options.bytes, options.pieces, kinds, path);
  const double rate = seconds > 0 ? static_cast<double>(options.bytes) / seconds : 0;
  const json value{{"device", question.info.spec},
                   {"bytes", options.bytes},
                   {"pieces", options.pieces},
                   {"from", from},
                   {"to", to},
                   {"path", transfer_path_name(path)},
                   {"seconds", seconds},
                   {"bytes_per_second", rate},
                   {"measured", profile.measured}};
  const std::string pieces = options.pieces == 1 ? "" : fmt::format(" in {} pieces", options.pieces);
  return question.answer(value,
                         fmt::format("{}{} from {} to {} memory of {}: {}, {} path, {} GB/s\n",
                                     format_bytes(options.bytes), pieces, from, to, question.info.spec,
                                     format_seconds(seconds), transfer_path_name(path), format_rate(rate)));
}

}  // namespace penstock::cli
