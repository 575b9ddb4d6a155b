#include "commands.hpp"
#include "output.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

TransferPath parse_path(const std::string& name) {
  for (const TransferPath path :
       {TransferPath::automatic, TransferPath::direct, TransferPath::staged, TransferPath::packed}) {
    if (transfer_path_name(path) == name) return path;
  }
  throw InvalidArgument(fmt::format("unknown path '{}'; use automatic, direct, staged or packed", name));
}

}  // namespace

int run_predict(const PredictOptions& options, const Environment& environment) {
  OutputFile output("--json", options.json);
  const TransferKinds kinds{parse_memory_kind(options.from), parse_memory_kind(options.to)};
  TransferPath path = parse_path(options.path);
  const DeviceInfo info = Device::open(options.device, environment.device).info();
  std::optional<LinkProfile> stored;
  if (!options.profile.empty() || environment.cache_directory) {
    const auto file = profile_file(options.profile, info, environment);
    output.keep_off(file, "the link profile");
    stored = stored_profile(file, info);
  }
  const LinkProfile profile = stored ? *std::move(stored) : LinkProfile::defaults(info);
  if (path == TransferPath::automatic) path = profile.choose_path(options.bytes, options.pieces, kinds);
  const double seconds = profile.predict(options.bytes, options.pieces, kinds, path);
  const double rate = seconds > 0 ? static_cast<double>(options.bytes) / seconds : 0;

  if (output) {
    const nlohmann::json value{
        {"device", info.spec},  {"bytes", options.bytes},   {"pieces", options.pieces},
        {"from", options.from}, {"to", options.to},         {"path", transfer_path_name(path)},
        {"seconds", seconds},   {"bytes_per_second", rate}, {"measured", profile.measured}};
    output.write(value.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n");
  }
  if (output.is_standard_output()) return 0;
  const std::string pieces = options.pieces == 1 ? "" : fmt::format(" in {} pieces", options.pieces);
  print(fmt::format("{}{} from {} to {} memory of {}: {}, {} path, {} GB/s\n", format_bytes(options.bytes),
                    pieces, options.from, options.to, info.spec, format_seconds(seconds),
                    transfer_path_name(path), format_rate(rate)));
  print(
      profile.measured
          ? fmt::format("from the link profile of {}\n", profile.measured_at)
          : fmt::format("from careful defaults: this link is not measured; run `penstock link --device {}`\n",
                        info.spec));
  return 0;
}

}  // namespace penstock::cli
