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

/// The kinds of memory at both ends of a transfer. Exactly one end at least is `device`.
struct TransferKinds {
  MemoryKind source = MemoryKind::pageable;
  MemoryKind destination = MemoryKind::device;
};

/// What a link was measured to do, and therefore what a transfer will take. A value: copy it freely.
///
/// Times are seconds from the request until the destination holds the bytes, medians of an otherwise idle
/// machine.
class LinkProfile {
 public:
  /// What a curve was measured of. `driver` curves are the driver's own copy; `staged` and `packed` are ours.
  enum class Curve : std::uint8_t {
    pinned_h2d,
    pinned_d2h,
    pinned_both,  ///< bytes count both directions
    pageable_h2d,
    pageable_d2h,
    staged_h2d,
    staged_d2h,
    zero_copy_h2d,  ///< a kernel reads locked host memory
    device_d2d,
  };
  /// Seconds by bytes, ascending in bytes.
  struct Point {
    std::size_t bytes = 0;
    double seconds = 0;
  };
  /// Seconds of a packed transfer of `pieces` equal pieces of `bytes` in all.
  struct PackedPoint {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };

  /// Careful figures for a device nobody measured: from its link's generation and width, and low.
  [[nodiscard]] static LinkProfile defaults(const DeviceInfo& device);

  /// Reads a profile. Nullopt, and the reason in `why`, where the file is not there, is damaged, was written
  /// by another version, or describes another device, driver or host. Never throws for a bad file.
  [[nodiscard]] static std::optional<LinkProfile> load(const std::filesystem::path& file,
                                                       const DeviceInfo& device, std::string* why = nullptr);
  /// Writes the profile so that a reader sees the old file or the new one, whole. Throws Error with the path.
  void save(const std::filesystem::path& file) const;

  /// The profile as JSON text, and back. parse throws InvalidArgument that says what is wrong.
  [[nodiscard]] std::string to_json() const;
  [[nodiscard]] static LinkProfile parse(const std::string& json);

  /// Where `penstock link` stores the profile of `device` below a user's cache directory.
  [[nodiscard]] static std::filesystem::path file_for(const std::filesystem::path& cache_directory,
                                                      const DeviceInfo& device);

  /// Seconds that a transfer of `bytes` in `pieces` will take on `path`; `automatic` takes the path that the
  /// engine would. Between measured points, time is interpolated in proportion (log-log); past the last one
  /// it grows at the last one's rate. Throws InvalidArgument for host to host, and for a path that these
  /// kinds do not have.
  [[nodiscard]] double predict(std::size_t bytes, std::size_t pieces, TransferKinds kinds,
                               TransferPath path = TransferPath::automatic) const;
  /// The path that takes the least time.
  [[nodiscard]] TransferPath choose_path(std::size_t bytes, std::size_t pieces, TransferKinds kinds) const;

  /// Best measured bandwidth in bytes per second, each way: the link's ceiling.
  [[nodiscard]] double ceiling(CopyDirection direction) const;

  /// What it describes.
  std::string device_name;
  std::string device_uuid;  ///< the device's spec where it has no uuid
  std::string driver;
  std::string processor;
  LinkInfo link;
  bool measured = false;    ///< false for defaults
  std::string measured_at;  ///< UTC, ISO 8601; empty for defaults

  /// How the engine should stage.
  unsigned staging_threads = 4;
  std::size_t chunk_bytes = std::size_t{4} << 20;
  bool streaming_stores = true;

  /// Every curve of a measured profile has points.
  std::map<Curve, std::vector<Point>> curves;
  /// Ascending in pieces, then in bytes.
  std::vector<PackedPoint> packed_h2d;
  std::vector<PackedPoint> packed_d2h;
  /// Seconds from one small asynchronous copy to the next, enqueued back to back; 0 where not measured.
  double copy_interval = 0;
};

[[nodiscard]] std::string_view curve_name(LinkProfile::Curve curve) noexcept;

}  // namespace penstock
