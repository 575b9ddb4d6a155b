#pragma once

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace penstock::testing {

struct CommandResult {
  int status = -1;  ///< exit status; 128 plus the signal's number if a signal ended it
  std::string output;
  std::string errors;
};

/// Runs `penstock` with a home of its own, and with only the given environment.
class Command {
 public:
  Command();
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  std::vector<std::string> environment;
  [[nodiscard]] const std::filesystem::path& home() const noexcept { return home_; }

  [[nodiscard]] CommandResult run(const std::vector<std::string>& arguments) const;
  /// Like run, but sends `signal` once standard error holds `text`.
  [[nodiscard]] CommandResult interrupt(const std::vector<std::string>& arguments, const std::string& text,
                                        int signal) const;
  /// Like run, but calls `act` once standard error holds `text`.
  [[nodiscard]] CommandResult run_and(const std::vector<std::string>& arguments, const std::string& text,
                                      const std::function<void()>& act) const;
  /// Runs a shell script in the home, with the command's path in $PENSTOCK.
  [[nodiscard]] CommandResult run_script(const std::string& script) const;
  /// Like run, with a terminal as standard error. `errors` holds its text.
  [[nodiscard]] CommandResult run_on_terminal(const std::vector<std::string>& arguments) const;

 private:
  std::filesystem::path home_;
};

[[nodiscard]] std::string read_text(const std::filesystem::path& file);

/// What the page of a report shows.
[[nodiscard]] nlohmann::json data_of(const std::string& page);

}  // namespace penstock::testing
