#include "link/link_steps.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/link/link_measurement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock {

namespace {

using Curve = LinkProfile::Curve;

/// A step of the measurement. Its weight is roughly its share of the time.
struct Step {
  std::string_view name;
  double weight;
  std::function<void(LinkRun&)> measure;
};

Step call(std::string_view name, double weight, Curve curve) {
  return {name, weight, [curve](LinkRun& run) { measure_curve(run, curve); }};
}

}  // namespace

const LinkSeries* LinkMeasurement::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(series, name, &LinkSeries::name);
  return found == series.end() ? nullptr : &*found;
}

LinkMeasurement measure_link(const Device& device, const LinkMeasurementOptions& options) {
  if (options.max_bytes < LinkBench::kLeastCapacity) {
    throw InvalidArgument(fmt::format("The largest copy to measure is at least {}; {} is too small.",
                                      format_bytes(LinkBench::kLeastCapacity),
                                      format_bytes(options.max_bytes)));
  }
  const std::array steps{
      Step{"host memory copy", 3, measure_host_copy},
      Step{"staging settings", 3, search_staging},
      call("pinned H2D", 1.5, Curve::pinned_h2d),
      call("pinned D2H", 1.5, Curve::pinned_d2h),
      Step{"gathers of samples", 6, measure_gathers},
      Step{"small copies back to back", 0.1, measure_copy_interval},
      call("pageable H2D by the driver", 3, Curve::pageable_h2d),
      call("pageable D2H by the driver", 2, Curve::pageable_d2h),
      call("staged H2D", 1.5, Curve::staged_h2d),
      call("staged D2H", 1.5, Curve::staged_d2h),
      Step{"packed H2D", 3, [](LinkRun& run) { measure_packed(run, CopyDirection::h2d); }},
      Step{"packed D2H", 3, [](LinkRun& run) { measure_packed(run, CopyDirection::d2h); }},
      call("within the device", 1, Curve::device_d2d),
  };

  const auto begin = std::chrono::steady_clock::now();
  LinkMeasurement result;
  result.profile = LinkProfile::defaults(device.info());
  if (options.progress) options.progress({0, "taking memory"});
  LinkBench bench(device, options, result.notes);
  LinkRun run{.bench = bench, .result = result, .engine = {}, .advance = {}};

  double total = 0;
  for (const Step& step : steps) total += step.weight;
  double before = 0;
  for (const Step& step : steps) {
    run.advance = [&](double part) {
      bench.report(step.name, (before + step.weight * std::min(part, 1.0)) / total);
    };
    run.advance(0);
    step.measure(run);
    before += step.weight;
  }
  bench.report("done", 1);

  result.profile.measured = true;
  result.profile.measured_at = utc_now();
  result.verified_bytes = bench.verified_bytes();
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace penstock
