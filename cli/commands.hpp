#pragma once

#include "terminal.hpp"

#include <penstock/device/device.hpp>
#include <penstock/device/device_group.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

/// The settings that the command takes from its environment. Nothing else reads the environment.
struct Environment {
  DeviceOptions device;                                    ///< PENSTOCK_LIBCUDA
  std::optional<std::filesystem::path> cache_directory;    ///< XDG_CACHE_HOME, or HOME and .cache
  std::vector<std::filesystem::path> dataset_directories;  ///< PENSTOCK_DATA, then the system's
  std::vector<std::filesystem::path> chart_libraries;      ///< PENSTOCK_D3, or where d3.min.js usually is
  std::string python;  ///< a program that has the package, or is looked for in the PATH
  bool utf8 = false;
};

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
  bool ascii = false;
};
/// Measures the link of a device, or a group of several.
int run_link(const LinkOptions& options, const Environment& environment);

struct PredictOptions {
  std::string device = "auto";
  std::size_t bytes = 0;
  std::size_t pieces = 1;
  std::string from;  ///< kind of memory, or of a feed, type of the stored values; empty: pageable, uint8
  std::string to;    ///< the same of the destination; empty: device, or the stored type
  std::string path = "automatic";
  std::size_t sample_bytes = 0;  ///< 0: a transfer, otherwise a feed of such samples
  std::uint64_t batch = 256;
  bool shuffle = false;
  double step_ms = 0;
  std::optional<double> loader_ms;  ///< of a loader whose rate was measured, in place of what follows
  std::optional<double> fetch_ms;
  double collate_ms = 0;
  double waiting_ms = 0;
  double receive_ms = 0;
  unsigned workers = 0;
  unsigned processors = 0;  ///< 0: those of this machine
  std::string residency = "none";
  std::string gather = "automatic";
  std::size_t prefetch = 2;
  unsigned threads = 0;
  std::string profile;
  std::string json;  ///< file, "-" for standard output, empty for none
};
int run_predict(const PredictOptions& options, const Environment& environment);

struct LoadOptions {
  std::vector<std::string> files;
  std::string device = "auto";
  std::vector<std::string> relay;  ///< devices whose links help
  std::vector<std::string> group;  ///< devices that all receive, in place of `device`
  std::string profile;
  std::string json;  ///< file, "-" for standard output, empty for none
};
int run_load(const LoadOptions& options, const Environment& environment);

struct FeedOptions {
  std::vector<std::string> command_line;  ///< as it was typed
  std::vector<std::string> sources;
  std::string device = "auto";
  std::uint64_t batch = 256;
  std::uint64_t epochs = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::vector<std::string> to;     ///< "float32" or "images=float16"
  std::vector<std::string> scale;  ///< "0.004", "images=0.004" or "images=0.017,0.018,0.017"
  std::vector<std::string> shift;
  std::string residency = "none";
  std::string gather = "automatic";
  bool drop_last = false;
  std::uint64_t rank = 0;
  std::uint64_t world_size = 1;
  std::size_t prefetch = 2;
  unsigned threads = 0;
  std::size_t budget = 0;
  std::size_t row_budget = 0;
  bool narrow = true;
  std::string split = "train";
  std::vector<std::string> search;
  std::size_t load_limit = 0;  ///< 0: a quarter of the host's memory
  bool verify = false;
  double step_ms = 0;
  std::string report;
  std::string json;  ///< file, "-" for standard output, empty for none
  std::string profile;
  bool ascii = false;
};
int run_feed(const FeedOptions& options, const Environment& environment);

struct DoctorOptions {
  std::string loader;  ///< "FILE.py:NAME"
  double seconds = 2;  ///< of each run
  std::optional<double> step_ms;
  /// Of PyTorch's profiler, several if they are of ranks; or a folder of recordings. In place of a loader.
  std::vector<std::string> traces;
  std::vector<std::string> command;  ///< a program and its arguments, in place of a trace
  std::string verify;                ///< line of a shell that runs the changed program, empty for none
  std::string record;                ///< folder to keep the command's recordings in, empty for none
  std::string recorder;              ///< library to record with, empty: the one that lies beside the command
  bool no_lines = false;             ///< record no places of calls
  bool no_contents = false;          ///< record nothing of what copies contain
  std::string budget;                ///< file, empty for none
  std::string profile;               ///< link profile of the machine that was recorded, empty for none
  std::string json;                  ///< file, "-" for standard output, empty for none
  std::string html;                  ///< file for a page, empty for none
  std::string perfetto;              ///< file for a trace in Chrome's format, empty for none
  std::optional<std::uint64_t> process;  ///< to draw; nullopt: the first one that used a GPU
};
/// Examines a trace or a program; or runs python3, and throws Error if that ends without a verdict.
int run_doctor(const DoctorOptions& options, const Environment& environment);
/// Returns kBudgetBroken if a budget is given and the trace, or a process of the recording, does not keep to
/// it.
int run_trace_doctor(const DoctorOptions& options, const Environment& environment);
inline constexpr int kBudgetBroken = 3;
/// Runs the command and examines what it did. If its exit status is 0, runs the changed program, if there is
/// one, and compares. Returns the first exit status that is not 0; if there is none, 1 if what it did cannot
/// be examined or written, or kBudgetBroken as above.
int run_recording_doctor(const DoctorOptions& options, const Environment& environment);

/// The options ask for something impossible: exit status 2, as for options that cannot be read.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The file of the profile of `device`: `file`, or one in the cache. Throws Error if there is neither.
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const DeviceInfo& device,
                                                 const Environment& environment);
/// The profile in `file`, or nullopt. If there is one that cannot be used, stderr and `ignored` say why.
[[nodiscard]] std::optional<LinkProfile> stored_profile(const std::filesystem::path& file,
                                                        const DeviceInfo& device,
                                                        std::string* ignored = nullptr);

/// The same two for a group of devices.
[[nodiscard]] std::filesystem::path profile_file(const std::string& file, const DeviceGroup& group,
                                                 const Environment& environment);
[[nodiscard]] std::optional<GroupProfile> stored_profile(const std::filesystem::path& file,
                                                         const DeviceGroup& group);

/// Throws Error if storing a profile in `file` would replace something other than a regular file, or, if the
/// user `named` the file, other than a profile. A damaged profile may be replaced.
void require_profile_place(const std::filesystem::path& file, bool named);

/// "55.6": bytes per second in GB/s, with three significant digits.
[[nodiscard]] std::string format_rate(double bytes_per_second);
/// "PCIe 5 x16", or "not stated".
[[nodiscard]] std::string format_link(const LinkInfo& link);
/// The same for a device. Says so if it does not have a link.
[[nodiscard]] std::string link_text(const DeviceInfo& device);

}  // namespace penstock::cli
