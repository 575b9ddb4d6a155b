#include "commands.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace penstock::cli {

namespace {

TransferPath parse_path(const std::string& name) {
  for (const TransferPath path :
       {TransferPath::automatic, TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    if (transfer_path_name(path) == name) return path;
  }
  throw InvalidArgument(fmt::format("'{}' is no path; known are automatic, direct, staged and packed", name));
}

}  // namespace

int run_predict(const PredictOptions& options, const Environment& environment) {
  const TransferKinds kinds{parse_memory_kind(options.from), parse_memory_kind(options.to)};
  TransferPath path = parse_path(options.path);
  const DeviceInfo info = Device::open(options.device, environment.device).info();
  std::optional<LinkProfile> stored;
  if (!options.profile.empty() || environment.cache_directory) {
    stored = stored_profile(profile_file(options.profile, info, environment), info);
  }
  const LinkProfile profile = stored ? *std::move(stored) : LinkProfile::defaults(info);
  if (path == TransferPath::automatic) path = profile.choose_path(options.bytes, options.pieces, kinds);
  const double seconds = profile.predict(options.bytes, options.pieces, kinds, path);
  const double rate = seconds > 0 ? static_cast<double>(options.bytes) / seconds : 0;

  if (options.json) {
    const nlohmann::json value{
        {"device", info.spec},  {"bytes", options.bytes},   {"pieces", options.pieces},
        {"from", options.from}, {"to", options.to},         {"path", transfer_path_name(path)},
        {"seconds", seconds},   {"bytes_per_second", rate}, {"measured", profile.measured}};
    fmt::print("{}\n", value.dump(2));
    return 0;
  }
  const std::string pieces = options.pieces == 1 ? "" : fmt::format(" in {} pieces", options.pieces);
  fmt::print("{}{} from {} to {} memory of {}: {}, {} path, {} GB/s\n", format_bytes(options.bytes), pieces,
             options.from, options.to, info.spec, format_seconds(seconds), transfer_path_name(path),
             format_rate(rate));
  if (profile.measured) {
    fmt::print("from the link profile of {}\n", profile.measured_at);
  } else {
    fmt::print("from careful defaults: this link is not measured; run `penstock link --device {}`\n",
               info.spec);
  }
  return 0;
}

}  // namespace penstock::cli
