#pragma once

#include "cli/shared/environment.hpp"
#include "cli/shared/link_profiles.hpp"
#include "cli/shared/terminal.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

struct InfoOptions {
  std::string device;  ///< empty: all
  std::string json;    ///< file, "-" for standard output, empty for none
};
int run_info(const InfoOptions& options, const Environment& environment);

struct LinkOptions {
  std::string device = "auto";
  std::vector<std::string> devices;  ///< of a group to measure, in place of `device`
  bool quick = false;
  std::size_t max_bytes = std::size_t{1} << 30;
  std::size_t repetitions = 0;
  std::string json;  ///< file, "-" for standard output, empty for none
  bool store = true;
  std::string profile;  ///< file in place of the one in the cache
};
/// Measures the link of a device, or a group of several.
int run_link(const LinkOptions& options, const Environment& environment);

struct FeedOptions {
  std::vector<std::string> command_line;  ///< as it was typed
  std::vector<std::string> sources;
  std::string device = "auto";
  std::uint64_t batch = 256;
  std::uint64_t epochs = 1;
  bool shuffle = false;
  std::vector<std::string> to;  ///< "float32" or "images=float16"
  std::string residency = "none";
  std::string gather = "automatic";
  std::size_t prefetch = 2;
  unsigned threads = 0;
  std::size_t budget = 0;
  std::size_t load_limit = 0;  ///< 0: a quarter of the host's memory
  bool verify = false;
  double step_ms = 0;
  std::string report;
  std::string json;  ///< file, "-" for standard output, empty for none
  std::string profile;
};
int run_feed(const FeedOptions& options, const Environment& environment);

struct RunOptions {
  std::vector<std::string> command;  ///< a program and its arguments
  bool library = false;              ///< print the library's path, and run nothing
  int report = 0;                    ///< a running program: say what was taken so far, and run nothing; 0: no
  bool feed = false;                 ///< feed the batches of DataLoaders, too
  std::string json;                  ///< file, "-" for standard output, empty for none
};
/// Runs the command with its copies taken, and returns its exit status.
int run_run(const RunOptions& options);

}  // namespace penstock::cli
