#pragma once

#include <penstock/core/statistics.hpp>
#include <penstock/device/device.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// How far a measurement has come.
struct LinkProgress {
  double fraction = 0;    ///< of the work, 0 to 1
  std::string_view step;  ///< "pinned H2D"
};

struct LinkMeasurementOptions {
  /// Largest single copy, at least 64 KiB. Lowered, with a note, if host or device lacks room for it.
  std::size_t max_bytes = std::size_t{1} << 30;
  /// Fewer repetitions and smaller copies: seconds instead of tens of seconds.
  bool quick = false;
  /// Most repetitions of a point; 0: as the time allows, up to 200.
  std::size_t repetitions = 0;
  /// Seconds after which further points get the least repetitions. 0: 6 if quick, otherwise 30.
  double seconds = 0;
  /// Called on the measuring thread, some times a second. An exception from it ends the measurement and
  /// reaches the caller once all enqueued work is done.
  std::function<void(const LinkProgress&)> progress;
};

/// Repetitions of one size, in seconds on the host's clock, from the request until the destination holds the
/// bytes.
struct LinkMeasuredPoint {
  std::size_t bytes = 0;
  std::size_t pieces = 1;
  Summary seconds;
};

struct LinkSeries {
  /// A curve's name, "packed_h2d", "packed_d2h", or a gather's name after "gather_". Of a gather, bytes and
  /// seconds are those of one sample in a large shuffled batch. Of "gather_host" they are those of a batch of
  /// `pieces` samples.
  std::string name;
  std::vector<LinkMeasuredPoint> points;
};

/// One setting of the search for the best staging.
struct StagingTrial {
  unsigned threads = 0;
  std::size_t chunk_bytes = 0;
  bool streaming_stores = false;
  double bytes_per_second = 0;
};

/// Host memory copied from pageable to pinned memory.
struct HostCopyRate {
  unsigned threads = 0;
  double cached = 0;     ///< bytes per second
  double streaming = 0;  ///< bytes per second
};

struct LinkMeasurement {
  LinkProfile profile;
  std::vector<LinkSeries> series;
  std::vector<StagingTrial> staging_trials;
  std::vector<HostCopyRate> host_copy;
  std::vector<std::string> notes;  ///< measurements that were made smaller, and why
  std::size_t verified_bytes = 0;  ///< compared with their source after a measurement
  double seconds = 0;              ///< the whole measurement

  /// The series of `name`, or null.
  [[nodiscard]] const LinkSeries* find(std::string_view name) const noexcept;
  /// All members as JSON text, in seconds and bytes.
  [[nodiscard]] std::string to_json() const;
};

/// Measures the link of `device` on an otherwise idle machine: every curve of a LinkProfile, packed
/// transfers, gathers, and staging settings. Blocks the host
/// throughout. After each point, compares the destination's bytes with the random source data. If they
/// differ, throws Error that names the measurement. If not even 64 KiB can be measured, throws OutOfMemory or
/// Unsupported. Throws DeviceError.
[[nodiscard]] LinkMeasurement measure_link(const Device& device, const LinkMeasurementOptions& options = {});

}  // namespace penstock
