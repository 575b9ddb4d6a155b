#include "cli/shared/arguments.hpp"

#include "core/shared/parse_number.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace penstock::cli {

std::uint64_t parse_count(const char* option, const std::string& text, std::uint64_t least,
                          std::uint64_t most) {
  const auto number = parse_number<std::uint64_t>(text);
  if (number && *number >= least && *number <= most) return *number;
  const bool is_whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const bool large = is_whole && number.value_or(UINT64_MAX) > most;
  throw CLI::ValidationError(
      option, large && most >= kUnlimited ? fmt::format("{} is too large; use at most {}", text, most)
              : most >= kUnlimited
                  ? fmt::format("'{}' is not a whole number of {} or more", text, least)
                  : fmt::format("'{}' is not a whole number from {} to {}", text, least, most));
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "it is empty" : ""; }, ""};
}

CLI::Option* add_time(CLI::App& command, const char* name, const std::string& unit, double least, double most,
                      const std::function<void(double)>& take, const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            const auto number = parse_number<double>(text);
            if (!number || !(*number >= least && *number <= most)) {
              throw CLI::ValidationError(
                  name, fmt::format("'{}' is not a time from {} to {} {}", text, least, most, unit));
            }
            take(*number);
          },
          description)
      ->type_name("X");
}

CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [&bytes, name](const std::string& text) {
            try {
              bytes = parse_bytes(text);
            } catch (const InvalidArgument& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          description)
      ->type_name("SIZE");
}

CLI::Option* add_file(CLI::App& command, const char* name, std::string& file,
                      const std::string& description) {
  return command.add_option(name, file, description)->type_name("FILE")->check(not_empty());
}

void add_json(CLI::App& command, std::string& file, const std::string& description) {
  add_file(command, "--json", file,
           fmt::format("Write {} as JSON to FILE; - is standard output, with nothing else", description));
}

CLI::Option* add_device(CLI::App& command, std::string& device) {
  return command.add_option("--device", device, "cuda:N, host, host:N, host:N,key=value,..., or auto")
      ->type_name("SPEC");
}

}  // namespace penstock::cli
