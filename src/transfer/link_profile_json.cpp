#include "transfer/link_identity.hpp"
#include "transfer/profile_json.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>

#include <array>

namespace penstock {

namespace {

namespace pj = profile_json;
using pj::json;
using pj::member;
using pj::read_bool;
using pj::read_count;
using pj::read_positive;
using pj::read_string;
using pj::refuse;
using pj::to_count;
using pj::to_positive;
using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;

constexpr pj::Format kLinkProfileFormat{"link profile", "penstock-link-profile", 3, "penstock link"};

constexpr std::array kCurves{Curve::pinned_h2d, Curve::pinned_d2h, Curve::pageable_h2d, Curve::pageable_d2h,
                             Curve::staged_h2d, Curve::staged_d2h, Curve::device_d2d};
constexpr std::array kGathers{Gather::zero_copy, Gather::copy_engine};

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

const json& to_row(const json& value, std::string_view name, std::size_t columns) {
  if (!value.is_array() || value.size() != columns) {
    refuse(fmt::format("'{}' holds a point that does not have {} numbers", name, columns));
  }
  return value;
}

std::vector<LinkProfile::Point> read_curve(const json& curves, std::string_view name) {
  const json& rows = member(curves, std::string(name).c_str());
  if (!rows.is_array() || rows.empty()) refuse(fmt::format("the curve '{}' has no points", name));
  std::vector<LinkProfile::Point> points;
  for (const json& row : rows) {
    const json& point = to_row(row, name, 2);
    points.push_back({to_count(point[0], name, 1, kMostBytes), to_positive(point[1], name)});
    if (points.size() > 1 && points.back().bytes <= points[points.size() - 2].bytes) {
      refuse(fmt::format("the sizes of the curve '{}' do not ascend", name));
    }
  }
  return points;
}

std::vector<LinkProfile::GridPoint> read_grid(const json& profile, const char* name,
                                              bool may_be_empty = false) {
  const json& rows = member(profile, name);
  if (!rows.is_array() || (rows.empty() && !may_be_empty)) refuse(fmt::format("'{}' has no points", name));
  std::vector<LinkProfile::GridPoint> points;
  for (const json& row : rows) {
    const json& point = to_row(row, name, 3);
    points.push_back({to_count(point[0], name, 1, kMostBytes), to_count(point[1], name, 1, kMostBytes),
                      to_positive(point[2], name)});
    if (points.size() < 2) continue;
    const auto& before = points[points.size() - 2];
    const auto& here = points.back();
    if (std::pair(here.pieces, here.bytes) <= std::pair(before.pieces, before.bytes)) {
      refuse(fmt::format("the points of '{}' do not ascend", name));
    }
  }
  return points;
}

json curve_rows(const std::vector<LinkProfile::Point>& points) {
  json rows = json::array();
  for (const auto& point : points) rows.push_back({point.bytes, point.seconds});
  return rows;
}

json grid_rows(const std::vector<LinkProfile::GridPoint>& points) {
  json rows = json::array();
  for (const auto& point : points) rows.push_back({point.pieces, point.bytes, point.seconds});
  return rows;
}

json to_value(const LinkProfile& profile) {
  json curves = json::object();
  for (const auto& [curve, points] : profile.curves) {
    curves[std::string(curve_name(curve))] = curve_rows(points);
  }
  json gathers = json::object();
  for (const auto& [gather, points] : profile.gathers) {
    if (!points.empty()) gathers[std::string(gather_name(gather))] = curve_rows(points);
  }
  return {{"device_name", profile.device_name},
          {"device_uuid", profile.device_uuid},
          {"driver", profile.driver},
          {"processor", profile.processor},
          {"measured", profile.measured},
          {"measured_at", profile.measured_at},
          {"staging_threads", profile.staging_threads},
          {"chunk_bytes", profile.chunk_bytes},
          {"streaming_stores", profile.streaming_stores},
          {"curves", std::move(curves)},
          {"packed_h2d", grid_rows(profile.packed_h2d)},
          {"packed_d2h", grid_rows(profile.packed_d2h)},
          {"copy_interval", profile.copy_interval},
          {"gathers", std::move(gathers)},
          {"host_gathers", grid_rows(profile.host_gathers)}};
}

LinkProfile from_value(const json& value) {
  LinkProfile profile;
  profile.device_name = read_string(value, "device_name");
  profile.device_uuid = read_string(value, "device_uuid");
  profile.driver = read_string(value, "driver");
  profile.processor = read_string(value, "processor");
  profile.measured = read_bool(value, "measured");
  profile.measured_at = read_string(value, "measured_at");
  profile.staging_threads = static_cast<unsigned>(read_count(value, "staging_threads", 1, 1024));
  profile.chunk_bytes = read_count(value, "chunk_bytes", 4 * kKiB, kGiB);
  profile.streaming_stores = read_bool(value, "streaming_stores");

  const json& curves = member(value, "curves");
  for (const Curve curve : kCurves) profile.curves[curve] = read_curve(curves, curve_name(curve));
  profile.packed_h2d = read_grid(value, "packed_h2d");
  profile.packed_d2h = read_grid(value, "packed_d2h");
  profile.copy_interval = read_positive(value, "copy_interval", true);
  const json& gathers = member(value, "gathers");
  if (!gathers.is_object()) refuse("'gathers' is not an object");
  // Others, which earlier versions measured, are not read.
  for (const Gather gather : kGathers) {
    const std::string_view name = gather_name(gather);
    if (gathers.contains(name)) profile.gathers[gather] = read_curve(gathers, name);
  }
  profile.host_gathers = read_grid(value, "host_gathers", true);
  return profile;
}

/// Why `profile` is not of this device on this host; empty if it is.
std::string foreign(const LinkProfile& profile, const DeviceInfo& device) {
  for (const auto& reason : {pj::differ("the device", profile.device_name, device.name),
                             pj::differ("the device", profile.device_uuid, link_identity(device)),
                             pj::differ("the driver", profile.driver, device.driver),
                             pj::differ("the processor", profile.processor, host_topology().processor)}) {
    if (!reason.empty()) return reason;
  }
  return {};
}

}  // namespace

std::string LinkProfile::to_json() const { return pj::write(kLinkProfileFormat, to_value(*this)); }

LinkProfile LinkProfile::parse(const std::string& text) {
  return pj::parse(kLinkProfileFormat, text, from_value);
}

std::optional<LinkProfile> LinkProfile::load(const std::filesystem::path& file, const DeviceInfo& device,
                                             std::string* why) {
  return pj::load(kLinkProfileFormat, file, why, parse,
                  [&](const LinkProfile& profile) { return foreign(profile, device); });
}

void LinkProfile::save(const std::filesystem::path& file) const {
  pj::save(kLinkProfileFormat, file, to_json());
}

std::filesystem::path LinkProfile::file_for(const std::filesystem::path& cache_directory,
                                            const DeviceInfo& device) {
  return cache_directory / "penstock" / pj::file_name("link", link_identity(device));
}

}  // namespace penstock
