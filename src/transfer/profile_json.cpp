#include "transfer/profile_json.hpp"

#include "core/shared/replace_file.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <span>

namespace penstock::profile_json {

namespace {

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

}  // namespace

void refuse(const std::string& what) { throw Unusable(what); }

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

double to_positive(const json& value, std::string_view name, bool or_zero) {
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

std::string write(const Format& format, const json& profile) {
  const json document{{"format", format.name},
                      {"version", format.version},
                      {"checksum", checksum_of(profile)},
                      {"profile", profile}};
  return text_of(document, 1) + "\n";
}

json profile_in(const Format& format, const std::string& text) {
  const json document = json::parse(text);
  if (!document.is_object() || document.value("format", json()) != format.name) {
    refuse(fmt::format("its format is not '{}'", format.name));
  }
  const json version = document.value("version", json());
  if (version != format.version) {
    refuse(
        fmt::format("it has format version {}, and this penstock reads version {}; measure again with "
                    "`{}`",
                    text_of(version, -1), format.version, format.command));
  }
  const json& profile = member(document, "profile");
  if (read_string(document, "checksum") != checksum_of(profile)) {
    refuse("its checksum does not match, so it was damaged or edited");
  }
  return profile;
}

void throw_unusable(const Format& format, const std::string& what) {
  throw InvalidArgument(fmt::format("This is not a usable {}: {}.", format.what, what));
}

void throw_not_json(const Format& format, const json::exception& error) {
  const std::string_view reason =
      error.what();  // "[json.exception.parse_error.101] parse error at line 1 ..."
  throw_unusable(format, fmt::format("its text is not JSON ({})", reason.substr(reason.find("] ") + 2)));
}

std::string differ(std::string_view what, const std::string& theirs, const std::string& ours) {
  return theirs == ours ? std::string()
                        : fmt::format("it describes {} '{}', and this one is '{}'", what, theirs, ours);
}

std::string read_file(const Format& format, const std::filesystem::path& file, std::string& why) {
  constexpr std::size_t kMost = 16 * kMiB;
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    why = fmt::format("There is no {} at {}.", format.what, file.string());
    return {};
  }
  if (!std::filesystem::is_regular_file(status)) {
    why = fmt::format("{} is not a file that can be read.", file.string());
    return {};
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InvalidArgument("it cannot be opened");
  std::string text(kMost + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw InvalidArgument("it cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMost) throw InvalidArgument(fmt::format("it is larger than any {}", format.what));
  return text;
}

std::string file_name(std::string_view prefix, const std::string& identity) {
  std::string name;
  for (const char c : identity) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    name += plain ? c : '_';
  }
  constexpr std::size_t kLongest = 80;
  if (name != identity || name.size() > kLongest) {
    name = fmt::format("{}-{:016x}", name.substr(0, kLongest), fnv1a(identity));
  }
  return fmt::format("{}-{}.json", prefix, name);
}

void save(const Format& format, const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path target = file.has_parent_path() ? file : std::filesystem::path(".") / file;
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) {
    throw Error(fmt::format("The {} cannot be stored at {}: its directory cannot be made ({}).", format.what,
                            file.string(), error.message()));
  }
  replace_file(target, std::as_bytes(std::span(text)));
}

}  // namespace penstock::profile_json
