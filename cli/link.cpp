#include "cli/shared/output.hpp"
#include "cli/shared/signals.hpp"
#include "link_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using ReportProgress = std::function<void(const LinkProgress&)>;

/// Measures with `measure` what `described` names, shows the result, and stores its profile.
template <typename Described, typename Measure, typename Report>
int measure_and_store(const LinkOptions& options, const Environment& environment, const Described& described,
                      Measure&& measure, Report&& report) {
  std::filesystem::path file;
  if (options.store) {
    file = profile_file(options.profile, described, environment);
    require_profile_place(file, !options.profile.empty());
    static_cast<void>(stored_profile(file, described));
  }
  // Checks the files before the measurement, so that an unwritable one does not waste it.
  OutputFile output("--json", options.json);
  output.keep_off(file, "the link profile");

  const auto measurement = [&] {
    Progress progress(::isatty(STDERR_FILENO) != 0, terminal_columns(STDERR_FILENO));
    return measure([&](const LinkProgress& now) {
      SignalWatch::check();
      progress.update(now.fraction, now.step);
    });
  }();
  SignalWatch::check();

  run_all({[&] { output.write(measurement.to_json()); },
           [&] {
             if (!output.is_standard_output()) print(report(measurement));
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

int link_of_device(const LinkOptions& options, const Environment& environment) {
  const Device device = Device::open(options.device, environment.device);
  const auto measure = [&](const ReportProgress& progress) {
    return measure_link(device, {.max_bytes = options.max_bytes,
                                 .quick = options.quick,
                                 .repetitions = options.repetitions,
                                 .progress = progress});
  };
  const auto report = [&](const LinkMeasurement& measurement) {
    return link_report(device.info(), measurement);
  };
  return measure_and_store(options, environment, device.info(), measure, report);
}

int links_of_group(const LinkOptions& options, const Environment& environment) {
  std::vector<Device> devices;
  for (const std::string& spec : options.devices) {
    devices.push_back(Device::open(spec, environment.device));
  }
  const DeviceGroup group(std::move(devices));
  const auto measure = [&](const ReportProgress& progress) {
    GroupMeasurementOptions how;
    how.bytes = std::min(how.bytes, options.max_bytes);
    how.quick = options.quick;
    how.repetitions = options.repetitions;
    how.progress = progress;
    return measure_group(group, how);
  };
  const auto report = [&](const GroupMeasurement& measurement) { return group_report(group, measurement); };
  return measure_and_store(options, environment, group, measure, report);
}

}  // namespace

int run_link(const LinkOptions& options, const Environment& environment) {
  const SignalWatch watch;
  return options.devices.empty() ? link_of_device(options, environment)
                                 : links_of_group(options, environment);
}

}  // namespace penstock::cli
