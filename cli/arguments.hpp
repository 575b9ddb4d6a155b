#pragma once

#include "commands.hpp"

#include <CLI/CLI.hpp>

#include <concepts>
#include <cstdint>

namespace penstock::cli {

/// The command's options; `options` outlives `app`.
void add_feed(CLI::App& app, FeedOptions& options);

/// From here on a count has no end that a user could meet.
inline constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 40;

/// The whole number that `text` is. Throws CLI::ValidationError that names `option` if it is none, or not
/// from `least` to `most`.
[[nodiscard]] std::uint64_t parse_count(const char* option, const std::string& text, std::uint64_t least,
                                        std::uint64_t most);

/// An option whose value is a whole number. Its help says the range, if that has an end, and `fallback`, what
/// holds without it. `name` is a literal.
template <std::unsigned_integral Count>
CLI::Option* add_count(CLI::App& command, const char* name, Count& count, std::uint64_t least,
                       std::uint64_t most, const std::string& description, const std::string& fallback) {
  const std::string range =
      most >= kUnlimited ? "" : ", " + std::to_string(least) + " to " + std::to_string(most);
  return command
      .add_option_function<std::string>(
          name,
          [&count, name, least, most](const std::string& text) {
            count = static_cast<Count>(parse_count(name, text, least, most));
          },
          description + range + " (default: " + fallback + ")")
      ->type_name("N");
}

/// A flag that turns off what `value` says.
CLI::Option* add_off_flag(CLI::App& command, const char* name, bool& value, const std::string& description);
/// An option whose value is a size such as 64MiB. `name` is a literal.
CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description);
/// An option whose value is one of a few words, which end its help.
CLI::Option* add_choice(CLI::App& command, const char* name, std::string& choice, const std::string& type,
                        const std::vector<std::string>& choices, const std::string& description);
CLI::Option* add_file(CLI::App& command, const char* name, std::string& file, const std::string& description);
/// --json, which means the same in every command.
void add_json(CLI::App& command, std::string& file, const std::string& description);
void add_device(CLI::App& command, std::string& device);

}  // namespace penstock::cli
