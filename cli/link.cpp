#include "link_report.hpp"
#include "signals.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace penstock::cli {

int run_link(const LinkOptions& options, const Environment& environment) {
  const Look look{.unicode = environment.utf8 && !options.ascii, .columns = terminal_columns(STDERR_FILENO)};
  const SignalWatch watch;
  const Device device = Device::open(options.device, environment.device);
  std::filesystem::path file;
  if (options.store) {
    file = profile_file(options.profile, device.info(), environment);
    static_cast<void>(stored_profile(file, device.info()));
  }
  // What cannot be written should be known before the measurement, not after it.
  if (!options.json.empty() && options.json != "-") require_writable(options.json);

  LinkMeasurement measurement;
  {
    Progress progress(::isatty(STDERR_FILENO) != 0, look);
    measurement = measure_link(device, {.max_bytes = options.max_bytes,
                                        .quick = options.quick,
                                        .repetitions = options.repetitions,
                                        .progress = [&](const LinkProgress& now) {
                                          SignalWatch::check();
                                          progress.update(now.fraction, now.step);
                                        }});
  }
  SignalWatch::check();

  if (options.json == "-") {
    fmt::print("{}", measurement.to_json());
  } else {
    const Look page{.unicode = look.unicode, .columns = terminal_columns(STDOUT_FILENO)};
    fmt::print("{}", link_report(device.info(), measurement, page));
    if (!options.json.empty()) write_file(options.json, measurement.to_json());
  }
  if (options.store) {
    measurement.profile.save(file);
    fmt::print(options.json == "-" ? stderr : stdout, "The link profile is stored in {}.\n", file.string());
  }
  return 0;
}

}  // namespace penstock::cli
