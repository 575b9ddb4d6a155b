#pragma once

#include <penstock/device/device.hpp>
#include <penstock/transfer/transfer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The kinds of memory at both ends of a transfer. At least one end is `device`.
struct TransferKinds {
  MemoryKind source = MemoryKind::pageable;
  MemoryKind destination = MemoryKind::device;
};

/// The measured speed of a link, from which the time of a transfer is predicted. A value: copy it freely.
///
/// Times are medians, in seconds from the request until the destination holds the bytes, on an idle machine.
class LinkProfile {
 public:
  /// The copy that a curve was measured with. `pinned` and `pageable` curves are the driver's own copy.
  enum class Curve : std::uint8_t {
    pinned_h2d,
    pinned_d2h,
    pageable_h2d,
    pageable_d2h,
    staged_h2d,
    staged_d2h,
    device_d2d,
  };
  /// Ways to make a batch out of samples drawn at random.
  enum class Gather : std::uint8_t {
    host,         ///< host threads copy them into a pinned slot, while the link carries the batch before.
                  ///< What a processor's cache holds counts, so their rate depends on the batch's bytes
    zero_copy,    ///< a kernel reads them over the link
    copy_engine,  ///< the copy engines fetch them
  };
  /// Seconds by bytes, ascending in bytes.
  struct Point {
    std::size_t bytes = 0;
    double seconds = 0;
  };
  /// Seconds for `pieces` equal pieces of `bytes` in all.
  struct GridPoint {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };

  /// Low figures for a device that was not measured, from its link's generation and width.
  [[nodiscard]] static LinkProfile defaults(const DeviceInfo& device);

  /// Reads a profile. Gives nullopt, and the reason in `why`, if the file is missing or damaged, was written
  /// by another version, or describes another device, driver or host. Never throws for a bad file.
  [[nodiscard]] static std::optional<LinkProfile> load(const std::filesystem::path& file,
                                                       const DeviceInfo& device, std::string* why = nullptr);
  /// Writes the profile. A reader sees the whole old file or the whole new one. Throws Error with the path.
  void save(const std::filesystem::path& file) const;

  /// The profile as JSON text, and back. parse throws InvalidArgument that says what is wrong.
  [[nodiscard]] std::string to_json() const;
  [[nodiscard]] static LinkProfile parse(const std::string& json);

  /// The file below a user's cache directory in which `penstock link` stores the profile of `device`.
  [[nodiscard]] static std::filesystem::path file_for(const std::filesystem::path& cache_directory,
                                                      const DeviceInfo& device);

  /// Seconds that a transfer of `bytes` in `pieces` will take on `path`; `automatic` takes the engine's
  /// choice. Between measured points, time is interpolated in proportion (log-log). Past the last point it
  /// grows at that point's rate. Throws InvalidArgument for host to host, and for a path without these kinds.
  [[nodiscard]] double predict(std::size_t bytes, std::size_t pieces, TransferKinds kinds,
                               TransferPath path = TransferPath::automatic) const;
  /// The path that takes the least time.
  [[nodiscard]] TransferPath choose_path(std::size_t bytes, std::size_t pieces, TransferKinds kinds) const;

  /// Seconds that `samples` of `sample_bytes` each take in a shuffled batch, interpolated as above; nullopt
  /// if this way of gathering was not measured.
  [[nodiscard]] std::optional<double> gather_seconds(Gather gather, std::size_t sample_bytes,
                                                     double samples) const;

  /// Best measured bandwidth in bytes per second, each way: the link's ceiling.
  [[nodiscard]] double ceiling(CopyDirection direction) const;

  /// The measured machine.
  std::string device_name;
  std::string device_uuid;  ///< the device's spec if it has no uuid
  std::string driver;
  std::string processor;
  bool measured = false;    ///< false for defaults
  std::string measured_at;  ///< UTC, ISO 8601; empty for defaults

  /// The engine's settings for staging.
  unsigned staging_threads = 4;
  std::size_t chunk_bytes = std::size_t{4} << 20;
  bool streaming_stores = true;

  /// Every curve of a measured profile has points.
  std::map<Curve, std::vector<Point>> curves;
  /// Ascending in pieces, then in bytes.
  std::vector<GridPoint> packed_h2d;
  std::vector<GridPoint> packed_d2h;
  /// Seconds from one small asynchronous copy to the next, enqueued back to back; 0 if not measured.
  double copy_interval = 0;
  /// By the bytes of a sample: seconds that a further sample adds to a large shuffled batch. Empty for
  /// defaults. The host's are in host_gathers.
  std::map<Gather, std::vector<Point>> gathers;
  /// Shuffled batches that host threads gather, a sample a piece. Ascending in pieces, then in bytes. Empty
  /// for defaults.
  std::vector<GridPoint> host_gathers;
};

[[nodiscard]] std::string_view gather_name(LinkProfile::Gather gather) noexcept;
[[nodiscard]] std::string_view curve_name(LinkProfile::Curve curve) noexcept;

}  // namespace penstock
