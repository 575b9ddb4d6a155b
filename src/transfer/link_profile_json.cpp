#include "transfer/link_identity.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

namespace penstock {

namespace {

using nlohmann::json;
using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;

constexpr std::string_view kFormat = "penstock-link-profile";
constexpr unsigned kVersion = 2;

constexpr std::array kCurves{Curve::pinned_h2d,   Curve::pinned_d2h,    Curve::pinned_both,
                             Curve::pageable_h2d, Curve::pageable_d2h,  Curve::staged_h2d,
                             Curve::staged_d2h,   Curve::zero_copy_h2d, Curve::device_d2d};
constexpr std::array kGathers{Gather::host, Gather::zero_copy, Gather::copy_engine, Gather::resident,
                              Gather::widening};

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string text_of(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

/// The checksum of the canonical text, so that white space and the order of keys do not matter.
std::string checksum_of(const json& profile) {
  return fmt::format("fnv1a:{:016x}", fnv1a(text_of(profile, -1)));
}

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument(fmt::format("This is not a usable link profile: {}.", what));
}

const json& member(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) refuse(fmt::format("'{}' is missing", key));
  return object.at(key);
}

std::string read_string(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_string()) refuse(fmt::format("'{}' is not a string", key));
  return value.get<std::string>();
}

bool read_bool(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_boolean()) refuse(fmt::format("'{}' is not true or false", key));
  return value.get<bool>();
}

std::uint64_t to_count(const json& value, std::string_view name, std::uint64_t least, std::uint64_t most) {
  if (!value.is_number_unsigned()) refuse(fmt::format("'{}' is not a whole number", name));
  const auto count = value.get<std::uint64_t>();
  if (count < least || count > most) {
    refuse(fmt::format("'{}' holds {}, which is not within {} and {}", name, count, least, most));
  }
  return count;
}

std::uint64_t read_count(const json& object, const char* key, std::uint64_t least, std::uint64_t most) {
  return to_count(member(object, key), key, least, most);
}

double to_positive(const json& value, std::string_view name, bool or_zero = false) {
  if (!value.is_number()) refuse(fmt::format("'{}' is not a number", name));
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < 0 || (number == 0 && !or_zero)) {
    refuse(fmt::format("'{}' holds {}, which is not a positive number", name, number));
  }
  return number;
}

double read_positive(const json& object, const char* key, bool or_zero) {
  return to_positive(member(object, key), key, or_zero);
}

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

std::vector<LinkProfile::PackedPoint> read_packed(const json& profile, const char* name) {
  const json& rows = member(profile, name);
  if (!rows.is_array() || rows.empty()) refuse(fmt::format("'{}' has no points", name));
  std::vector<LinkProfile::PackedPoint> points;
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

json packed_rows(const std::vector<LinkProfile::PackedPoint>& points) {
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
          {"link",
           {{"generation", profile.link.generation},
            {"width", profile.link.width},
            {"max_generation", profile.link.max_generation},
            {"max_width", profile.link.max_width}}},
          {"measured", profile.measured},
          {"measured_at", profile.measured_at},
          {"staging_threads", profile.staging_threads},
          {"chunk_bytes", profile.chunk_bytes},
          {"streaming_stores", profile.streaming_stores},
          {"curves", std::move(curves)},
          {"packed_h2d", packed_rows(profile.packed_h2d)},
          {"packed_d2h", packed_rows(profile.packed_d2h)},
          {"copy_interval", profile.copy_interval},
          {"gathers", std::move(gathers)},
          {"gather_threads", profile.gather_threads}};
}

LinkProfile from_value(const json& value) {
  LinkProfile profile;
  profile.device_name = read_string(value, "device_name");
  profile.device_uuid = read_string(value, "device_uuid");
  profile.driver = read_string(value, "driver");
  profile.processor = read_string(value, "processor");
  const json& link = member(value, "link");
  const auto link_count = [&](const char* key) {
    return static_cast<unsigned>(read_count(link, key, 0, 1024));
  };
  profile.link = {link_count("generation"), link_count("width"), link_count("max_generation"),
                  link_count("max_width")};
  profile.measured = read_bool(value, "measured");
  profile.measured_at = read_string(value, "measured_at");
  profile.staging_threads = static_cast<unsigned>(read_count(value, "staging_threads", 1, 1024));
  profile.chunk_bytes = read_count(value, "chunk_bytes", 4 * kKiB, kGiB);
  profile.streaming_stores = read_bool(value, "streaming_stores");

  const json& curves = member(value, "curves");
  for (const Curve curve : kCurves) profile.curves[curve] = read_curve(curves, curve_name(curve));
  for (const auto& item : curves.items()) {
    const bool known = std::any_of(kCurves.begin(), kCurves.end(),
                                   [&](Curve curve) { return curve_name(curve) == item.key(); });
    if (!known) refuse(fmt::format("it has an unknown curve '{}'", item.key()));
  }
  profile.packed_h2d = read_packed(value, "packed_h2d");
  profile.packed_d2h = read_packed(value, "packed_d2h");
  profile.copy_interval = read_positive(value, "copy_interval", true);
  const json& gathers = member(value, "gathers");
  for (const auto& item : gathers.items()) {
    const auto gather = std::find_if(kGathers.begin(), kGathers.end(),
                                     [&](Gather known) { return gather_name(known) == item.key(); });
    if (gather == kGathers.end()) refuse(fmt::format("it has an unknown gather '{}'", item.key()));
    profile.gathers[*gather] = read_curve(gathers, item.key());
  }
  profile.gather_threads = static_cast<unsigned>(read_count(value, "gather_threads", 0, 1024));
  return profile;
}

LinkProfile parse_document(const std::string& text) {
  const json document = json::parse(text);
  if (!document.is_object() || document.value("format", json()) != kFormat) {
    refuse(fmt::format("its format is not '{}'", kFormat));
  }
  const json version = document.value("version", json());
  if (version != kVersion) {
    refuse(
        fmt::format("it has format version {}, and this penstock reads version {}; measure again with "
                    "`penstock link`",
                    text_of(version, -1), kVersion));
  }
  const json& profile = member(document, "profile");
  if (read_string(document, "checksum") != checksum_of(profile)) {
    refuse("its checksum does not match, so it was damaged or edited");
  }
  return from_value(profile);
}

/// Why `profile` is not of this device on this host; empty if it is.
std::string foreign(const LinkProfile& profile, const DeviceInfo& device) {
  const auto differ = [](std::string_view what, const std::string& theirs, const std::string& ours) {
    return theirs == ours ? std::string()
                          : fmt::format("it describes {} '{}', and this one is '{}'", what, theirs, ours);
  };
  for (const auto& reason : {differ("the device", profile.device_name, device.name),
                             differ("the device", profile.device_uuid, link_identity(device)),
                             differ("the driver", profile.driver, device.driver),
                             differ("the processor", profile.processor, host_topology().processor)}) {
    if (!reason.empty()) return reason;
  }
  return {};
}

std::string read_text(const std::filesystem::path& file) {
  constexpr std::size_t kMost = 16 * kMiB;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InvalidArgument("it cannot be opened");
  std::string text(kMost + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw InvalidArgument("it cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMost) throw InvalidArgument("it is larger than any link profile");
  return text;
}

}  // namespace

std::string LinkProfile::to_json() const {
  const json profile = to_value(*this);
  const json document{
      {"format", kFormat}, {"version", kVersion}, {"checksum", checksum_of(profile)}, {"profile", profile}};
  return text_of(document, 1) + "\n";
}

LinkProfile LinkProfile::parse(const std::string& text) {
  try {
    return parse_document(text);
  } catch (const json::exception& error) {
    const std::string_view reason =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1 ..."
    refuse(fmt::format("its text is not JSON ({})", reason.substr(reason.find("] ") + 2)));
  }
}

std::optional<LinkProfile> LinkProfile::load(const std::filesystem::path& file, const DeviceInfo& device,
                                             std::string* why) {
  const auto because = [&](const std::string& reason) -> std::optional<LinkProfile> {
    if (why != nullptr) *why = reason;
    return std::nullopt;
  };
  try {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (status.type() == std::filesystem::file_type::not_found) {
      return because(fmt::format("There is no link profile at {}.", file.string()));
    }
    if (!std::filesystem::is_regular_file(status)) {
      return because(fmt::format("{} is not a file that can be read.", file.string()));
    }
    LinkProfile profile = parse(read_text(file));
    const std::string reason = foreign(profile, device);
    if (!reason.empty()) return because(fmt::format("{} is not used: {}.", file.string(), reason));
    return profile;
  } catch (const std::exception& error) {
    return because(fmt::format("{} is not used: {}", file.string(), error.what()));
  }
}

std::filesystem::path LinkProfile::file_for(const std::filesystem::path& cache_directory,
                                            const DeviceInfo& device) {
  const std::string identity = link_identity(device);
  std::string name;
  for (const char c : identity) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    name += plain ? c : '_';
  }
  constexpr std::size_t kLongest = 80;
  if (name != identity || name.size() > kLongest) {
    name = fmt::format("{}-{:016x}", name.substr(0, kLongest), fnv1a(identity));
  }
  return cache_directory / "penstock" / fmt::format("link-{}.json", name);
}

}  // namespace penstock
