#pragma once

#include <CLI/CLI.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace penstock::cli {

/// A limit from which on help and errors do not state it, since nobody reaches it.
inline constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 40;

/// Of whole numbers without another limit.
inline constexpr std::uint64_t kMostCount = std::numeric_limits<std::int64_t>::max();
inline constexpr double kLongestMilliseconds = 1e6;

/// Reads a whole number. Throws CLI::ValidationError that names `option` unless it is from `least` to `most`.
[[nodiscard]] std::uint64_t parse_count(const char* option, const std::string& text, std::uint64_t least,
                                        std::uint64_t most);

/// An option whose value is a whole number. Its help states the range, if that is limited, and the default,
/// `fallback`. `name` is a literal.
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

/// An option whose value is a number of `unit` from `least` to `most`. `name` is a literal.
CLI::Option* add_time(CLI::App& command, const char* name, const std::string& unit, double least, double most,
                      const std::function<void(double)>& take, const std::string& description);
/// An option whose value is a size such as 64MiB. `name` is a literal.
CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description);
/// Of an option's value.
[[nodiscard]] CLI::Validator not_empty();
CLI::Option* add_file(CLI::App& command, const char* name, std::string& file, const std::string& description);
/// --json, which means the same in every command.
void add_json(CLI::App& command, std::string& file, const std::string& description);
CLI::Option* add_device(CLI::App& command, std::string& device);

}  // namespace penstock::cli
