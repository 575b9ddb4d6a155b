#include "feed_account.hpp"

#include <penstock/core/feed_figures.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <variant>

namespace penstock::cli {

namespace {

using nlohmann::json;

json statistics_value(const FeedStatistics& statistics) {
  json value;
  for (const FeedFigure& figure : feed_figures()) {
    if (!figure.applies_to(statistics)) continue;
    std::visit([&](auto number) { value[std::string(figure.name)] = number; }, figure.value(statistics));
  }
  value["sentence"] = statistics.sentence();
  return value;
}

json device_value(const DeviceInfo& device) {
  return {{"spec", device.spec},
          {"backend", device.backend},
          {"name", device.name},
          {"driver", device.driver},
          {"link", format_link(device.link)}};
}

json options_value(const FeedOptions& o) {
  return {{"sources", o.sources}, {"batch", o.batch},         {"epochs", o.epochs}, {"shuffle", o.shuffle},
          {"to", o.to},           {"residency", o.residency}, {"gather", o.gather}, {"prefetch", o.prefetch},
          {"threads", o.threads}, {"budget_bytes", o.budget}, {"verify", o.verify}, {"step_ms", o.step_ms}};
}

}  // namespace

std::string feed_json(const FeedAccount& account) {
  json value = statistics_value(account.total);
  value.update(
      {{"version", PENSTOCK_VERSION},
       {"verified", account.verified},
       {"compared",
        {{"batches", account.compared.batches},
         {"samples", account.compared.samples},
         {"bytes", account.compared.bytes},
         {"seconds", account.compared.seconds}}},
       {"interrupted", account.interrupted},
       {"error", nullptr},
       {"device", device_value(account.device)},
       {"profile_measured", account.profile_measured},
       {"profile_ignored", account.profile_ignored},
       {"options", options_value(account.options)},
       {"dataset",
        {{"samples", account.dataset_samples}, {"bytes", account.dataset_bytes}, {"fields", account.fields}}},
       {"open_seconds", account.open_seconds},
       {"setup_seconds", account.setup_seconds},
       {"epochs", json::array()}});
  if (!account.trouble.empty()) value["error"] = account.trouble;
  for (const FeedEpoch& epoch : account.epochs) {
    json entry = statistics_value(epoch.statistics);
    entry.erase("epochs");
    entry.update({{"epoch", epoch.epoch}, {"complete", epoch.complete}});
    value["epochs"].push_back(std::move(entry));
  }
  return value.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

}  // namespace penstock::cli
