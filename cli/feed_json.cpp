#include "feed_account.hpp"

#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

using nlohmann::json;

json statistics_value(const FeedStatistics& s) {
  return {{"batches", s.batches},
          {"samples", s.samples},
          {"bytes", s.delivered_bytes},
          {"link_bytes", s.link_bytes},
          {"seconds", s.seconds},
          {"samples_per_second", s.samples_per_second()},
          {"delivered_gbps", s.delivered_gbps()},
          {"link_gbps", s.link_gbps()},
          {"link_efficiency", s.link_efficiency()},
          {"gather_seconds", s.gather_seconds},
          {"slot_wait_seconds", s.slot_wait_seconds},
          {"timed_batches", s.timed_batches},
          {"transfer_seconds", s.transfer_seconds},
          {"kernel_seconds", s.kernel_seconds},
          {"compute_seconds", s.compute_seconds},
          {"stall_seconds", s.stall_seconds},
          {"stall_share", s.stall_share()},
          {"exposed_transfer_seconds", s.exposed_transfer_seconds},
          {"exposed_gather_seconds", s.exposed_gather_seconds},
          {"exposed_kernel_seconds", s.exposed_kernel_seconds},
          {"stall_other_seconds", s.stall_other_seconds()},
          {"transfer_gbps", s.transfer_gbps()},
          {"transfer_share", s.transfer_share()},
          {"gather_share", s.gather_share()},
          {"kernel_share", s.kernel_share()},
          {"mean_ready", s.mean_ready},
          {"limited_by", feed_limit_name(s.limited_by())},
          {"sentence", s.sentence()}};
}

json device_value(const DeviceInfo& device) {
  return {{"spec", device.spec},
          {"backend", device.backend},
          {"name", device.name},
          {"driver", device.driver},
          {"link", format_link(device.link)}};
}

json options_value(const FeedOptions& o) {
  return {
      {"sources", o.sources},       {"split", o.split},   {"batch", o.batch},         {"epochs", o.epochs},
      {"shuffle", o.shuffle},       {"seed", o.seed},     {"drop_last", o.drop_last}, {"rank", o.rank},
      {"world_size", o.world_size}, {"to", o.to},         {"scale", o.scale},         {"shift", o.shift},
      {"residency", o.residency},   {"gather", o.gather}, {"prefetch", o.prefetch},   {"threads", o.threads},
      {"budget_bytes", o.budget},   {"narrow", o.narrow}, {"verify", o.verify},       {"step_ms", o.step_ms}};
}

}  // namespace

std::string feed_json(const FeedAccount& account) {
  const FeedStatistics& total = account.total;
  json value = statistics_value(total);
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
       {"prefetch_depth", total.prefetch_depth},
       {"slots", total.slots},
       {"ring_bytes", total.ring_bytes},
       {"resident_bytes", total.resident_bytes},
       {"resident_seconds", total.resident_seconds},
       {"link_ceiling", total.link_ceiling},
       {"sample_bytes", total.sample_bytes},
       {"epochs", json::array()}});
  if (!account.trouble.empty()) value["error"] = account.trouble;
  for (const FeedEpoch& epoch : account.epochs) {
    json entry = statistics_value(epoch.statistics);
    entry.update({{"epoch", epoch.epoch}, {"complete", epoch.complete}});
    value["epochs"].push_back(std::move(entry));
  }
  return value.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

}  // namespace penstock::cli
