#pragma once

#include <penstock/core/error.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

/// What the files of all profiles have in common: a format and its version, a checksum, and checked values.
namespace penstock::profile_json {

using nlohmann::json;

/// Names a kind of profile. Files of other versions are refused.
struct Format {
  std::string_view what;  ///< "link profile"
  std::string_view name;  ///< "penstock-link-profile"
  unsigned version = 1;
  std::string_view command;  ///< that measures it again
};

/// Says what is wrong with a profile's text. `parse` turns it into InvalidArgument.
class Unusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
[[noreturn]] void refuse(const std::string& what);

// Members of objects. Each throws Unusable if it is missing, of another type or out of range.
[[nodiscard]] const json& member(const json& object, const char* key);
[[nodiscard]] std::string read_string(const json& object, const char* key);
[[nodiscard]] bool read_bool(const json& object, const char* key);
[[nodiscard]] std::uint64_t to_count(const json& value, std::string_view name, std::uint64_t least,
                                     std::uint64_t most);
[[nodiscard]] std::uint64_t read_count(const json& object, const char* key, std::uint64_t least,
                                       std::uint64_t most);
[[nodiscard]] double to_positive(const json& value, std::string_view name, bool or_zero = false);
[[nodiscard]] double read_positive(const json& object, const char* key, bool or_zero);

[[nodiscard]] std::string write(const Format& format, const json& profile);
/// The profile in a text that `write` made. Throws Unusable.
[[nodiscard]] json profile_in(const Format& format, const std::string& text);
[[noreturn]] void throw_unusable(const Format& format, const std::string& what);
[[noreturn]] void throw_not_json(const Format& format, const json::exception& error);

/// Reads with `from_value`, which takes the profile's JSON. Throws InvalidArgument.
template <typename FromValue>
[[nodiscard]] auto parse(const Format& format, const std::string& text, FromValue&& from_value) {
  try {
    return from_value(profile_in(format, text));
  } catch (const Unusable& error) {
    throw_unusable(format, error.what());
  } catch (const json::exception& error) {
    throw_not_json(format, error);
  }
}

/// Empty if both are equal; otherwise that the profile describes another `what`.
[[nodiscard]] std::string differ(std::string_view what, const std::string& theirs, const std::string& ours);

/// The text of a file, and empty `why`; or a sentence in `why`.
[[nodiscard]] std::string read_file(const Format& format, const std::filesystem::path& file,
                                    std::string& why);

/// Loads with `from_text` unless `foreign` gives a reason against the profile. Never throws for a bad file.
template <typename FromText, typename Foreign>
[[nodiscard]] auto load(const Format& format, const std::filesystem::path& file, std::string* why,
                        FromText&& from_text, Foreign&& foreign)
    -> std::optional<decltype(from_text(std::string()))> {
  std::string reason;
  try {
    const std::string text = read_file(format, file, reason);
    if (reason.empty()) {
      auto profile = from_text(text);
      const std::string other = foreign(profile);
      if (other.empty()) return profile;
      reason = file.string() + " is not used: " + other + ".";
    }
  } catch (const std::exception& error) {
    reason = file.string() + " is not used: " + error.what();
  }
  if (why != nullptr) *why = reason;
  return std::nullopt;
}

/// "link-GPU-1234.json": a file's name that tells `identity` from others.
[[nodiscard]] std::string file_name(std::string_view prefix, const std::string& identity);

/// Replaces `file`, and makes its directory. Throws Error with the path.
void save(const Format& format, const std::filesystem::path& file, const std::string& text);

}  // namespace penstock::profile_json
