#include "link_report.hpp"
#include "output.hpp"
#include "signals.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace penstock::cli {

int run_link(const LinkOptions& options, const Environment& environment) {
  const Look look{.unicode = environment.utf8 && !options.ascii, .columns = terminal_columns(STDERR_FILENO)};
  const SignalWatch watch;
  const Device device = Device::open(options.device, environment.device);
  std::filesystem::path file;
  if (options.store) {
    file = profile_file(options.profile, device.info(), environment);
    require_profile_place(file, !options.profile.empty());
    static_cast<void>(stored_profile(file, device.info()));
  }
  // Checks the files before the measurement, so that an unwritable one does not waste it.
  OutputFile output("--json", options.json);
  output.keep_off(file, "the link profile");

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

  run_all({[&] { output.write(measurement.to_json()); },
           [&] {
             const Look page{.unicode = look.unicode, .columns = terminal_columns(STDOUT_FILENO)};
             if (!output.is_standard_output()) print(link_report(device.info(), measurement, page));
           },
           [&] {
             if (options.store) measurement.profile.save(file);
           }});
  if (options.store) {
    const std::string where = fmt::format("The link profile is stored in {}.\n", file.string());
    output.is_standard_output() ? say(where) : print(where);
  }
  return 0;
}

}  // namespace penstock::cli
