#include <penstock/link/link_measurement.hpp>

#include <nlohmann/json.hpp>

namespace penstock {

namespace {

using nlohmann::json;

json to_value(const Summary& summary) {
  return {{"median", summary.median}, {"minimum", summary.minimum}, {"maximum", summary.maximum},
          {"p99", summary.p99},       {"mean", summary.mean},       {"repetitions", summary.repetitions}};
}

json to_value(const LinkSeries& series) {
  json points = json::array();
  for (const auto& point : series.points) {
    points.push_back(
        {{"bytes", point.bytes}, {"pieces", point.pieces}, {"seconds", to_value(point.seconds)}});
  }
  return {{"name", series.name}, {"points", std::move(points)}};
}

}  // namespace

std::string LinkMeasurement::to_json() const {
  json all_series = json::array();
  for (const auto& one : series) all_series.push_back(to_value(one));
  json trials = json::array();
  for (const auto& trial : staging_trials) {
    trials.push_back({{"threads", trial.threads},
                      {"chunk_bytes", trial.chunk_bytes},
                      {"streaming_stores", trial.streaming_stores},
                      {"bytes_per_second", trial.bytes_per_second}});
  }
  json host = json::array();
  for (const auto& rate : host_copy) {
    host.push_back({{"threads", rate.threads}, {"cached", rate.cached}, {"streaming", rate.streaming}});
  }
  const json document{{"profile", json::parse(profile.to_json())},
                      {"series", std::move(all_series)},
                      {"staging_trials", std::move(trials)},
                      {"host_copy", std::move(host)},
                      {"notes", notes},
                      {"verified_bytes", verified_bytes},
                      {"seconds", seconds}};
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace penstock
